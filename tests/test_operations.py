"""What `bench/operations.py` takes the operations of a compiled program for."""

import pathlib
import runpy

BENCH = pathlib.Path(__file__).resolve().parent.parent / "bench"
TEXT = """HloModule jit_step, is_scheduled=true

FileNames
1 "/project/msajax/training/step.py"
2 "/lib/optax/_src/transform.py"
3 "/lib/jax/numpy.py"

FileLocations
1 {file_name_id=1 function_name_id=1 line=9 end_line=9 column=0 end_column=9}
2 {file_name_id=2 function_name_id=2 line=9 end_line=9 column=0 end_column=9}
3 {file_name_id=3 function_name_id=3 line=9 end_line=9 column=0 end_column=9}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}
3 {file_location_id=3 parent_frame_id=3}
4 {file_location_id=3 parent_frame_id=2}


%inner (p.0: f32[2,3], p.1: f32[3,4]) -> f32[2,4] {
  %p.0 = f32[2,3]{1,0} parameter(0)
  ROOT %dot.1 = f32[2,4]{1,0} dot(%p.0, %p.1), lhs_contracting_dims={1}
}

%outer (p.2: f32[2,3]) -> (f32[2,4], f32[2]) {
  %fusion.1 = f32[2,4]{1,0} fusion(%p.2), kind=kLoop, calls=%inner
  ROOT %reduce.1 = (f32[2]{0}, f32[2]{0}) reduce(%fusion.1), to_apply=%sum
}

%turned (p.3: f32[2,3]) -> f32[3,2] {
  %p.3 = f32[2,3]{1,0} parameter(0)
  ROOT %copy.1 = f32[3,2]{1,0} copy(%p.3), metadata={op_name="copy" stack_frame_id=4}
}

%adam (p.4: f32[2]) -> f32[2] {
  ROOT %sqrt.1 = f32[2]{0} sqrt(%p.4), metadata={op_name="sqrt" stack_frame_id=3}
}

ENTRY %main (p.5: f32[2,3]) -> f32[2] {
  %mixed = (f32[2,4], f32[2]) fusion(%p.5), kind=kOutput, calls=%outer
  %transposed = f32[3,2]{1,0} fusion(%p.5), kind=kLoop, calls=%turned
  %moved = f32[2]{0} fusion(%p.5), kind=kLoop, calls=%adam
  %total = f32[]{} reduce(%p.5), to_apply=%sum, metadata={op_name="sum" stack_frame_id=1}
  %gelu = f32[2,3]{1,0} tanh(%p.5), metadata={op_name="tanh" stack_frame_id=4}
  %library = f32[2,4]{1,0} custom-call(%p.5), custom_call_target="__cublas$gemm"
  ROOT %loop = f32[2]{0} while(%moved), condition=%c, body=%b
}
"""


def test_an_operation_is_of_the_first_kind_that_it_holds():
    operations = runpy.run_path(str(BENCH / "operations.py"))
    program = operations["Program"](TEXT)
    names = ("mixed", "transposed", "moved", "total", "gelu", "library", "loop")
    assert {name: program.kind(name) for name in names} == {
        "mixed": "products",  # with a sum in the same operation
        "transposed": "transposes and copies",
        "moved": "optimiser",  # called from optax, by its stack frames
        "total": "reductions",
        "gelu": "element-wise",
        "library": "products",
        "loop": None,  # its parts are operations themselves
    }

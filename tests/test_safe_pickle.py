"""Pickles: what they hold comes back as Python would load it; what they ask for is never done."""

import collections
import contextlib
import gzip
import os
import pathlib
import pickle
import re
import struct
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from pickle_files import (
    ANNOUNCED,
    FROMBUFFER,
    P4,
    RECONSTRUCT,
    SCALAR,
    array,
    buffer,
    data,
    dtype,
    dtype_state,
    name,
    shape,
    text,
)

from msajax.corpus.pickles import NoPickle, read_pickle
from msajax.errors import UserError

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "corpus.pkl"


def load(path: pathlib.Path, content: bytes):
    path.write_bytes(content)
    return read_pickle(path)


def refusal(path: pathlib.Path, content: bytes) -> str:
    """The sentence, without the file's name, with which a file of this content is refused."""
    with pytest.raises(UserError) as caught:
        load(path, content)
    return sentence(path, caught.value)


def is_recognised(path: pathlib.Path) -> bool:
    try:
        read_pickle(path)
    except NoPickle:
        return False
    except UserError:
        pass
    return True


def sentence(path: pathlib.Path, error: UserError) -> str:
    message = str(error)
    assert re.fullmatch(r"[^\n]{10,400}[^.]\.", message), message
    assert message.startswith(f"{path} ")
    return message.removeprefix(f"{path} ")


def same(a, b) -> bool:
    """Equal in type, shape, content, order; arrays may differ in order of bytes and of axes."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray | np.generic):
        native = a.dtype.newbyteorder("=")
        if a.shape != b.shape or native != b.dtype.newbyteorder("="):
            return False
        if a.dtype == object:
            return all(map(same, a.reshape(-1).tolist(), b.reshape(-1).tolist()))
        return np.asarray(a, native).tobytes() == np.asarray(b, native).tobytes()
    if isinstance(a, dict):
        if isinstance(a, collections.defaultdict) and a.default_factory is not b.default_factory:
            return False
        return same(list(a.items()), list(b.items()))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    return a == b


# --- what is read ---


def corpus() -> dict:
    rng = np.random.default_rng(0)
    objects = np.empty((2, 2), object)
    objects[:] = [["größer", None], [rng.normal(size=3), [1, "a"]]]
    return {
        "train": {
            "vision": rng.normal(size=(3, 4, 2)),
            "fortran": np.asfortranarray(rng.normal(size=(3, 4, 2))),
            "turned": rng.normal(size=(3, 4, 2)).transpose(1, 0, 2),
            "cut": rng.normal(size=(3, 8, 2))[:, ::2],
            "big endian": np.arange(6, dtype=">i4").reshape(2, 3),
            "float16": np.float16([1.5, np.nan, np.inf]),
            "mask": rng.random((3, 4)) < 0.5,
            "0-d": np.array(2.5),
            "id": np.array(["a$_$1", "größer", ""]),
            "bytes": np.array([b"sp", b"word"]),
            "raw_text": objects,
            "raw_text, columns first": np.asfortranarray(objects),
            "scalars": [np.float32(1.5), np.int64(-3), np.bool_(True)],
            "scalar text": [np.str_("é"), np.bytes_(b"x")],
            "type": np.dtype(">f4"),
        },
        "numbers": [0, 1, -1, 255, 256, 65536, -(2**31), 2**63, 2**2000, 1e300, -0.0, True, None],
        "tuples": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)),
        "sets": [{"a", 1}, frozenset({"b"}), set(), frozenset()],
        "dicts": [
            collections.OrderedDict(b=1, a=2),
            collections.defaultdict(set, {"x": {1}}),
            collections.defaultdict(None),
            {("v", 1): 1, 2.5: 2, None: 3, b"k": 4, np.str_("n"): 5},
            {i: str(i) for i in range(1500)},
        ],
        "strings": ["", "größer \U0001f600", "line\nbreak, 'quote' \"two\" back\\slash\\n"],
        "long strings": ["x" * 300, "ü" * 70000],
        "bytes": [b"\x00\xff\n", b"x" * 300],
    }


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_whatever_a_corpus_holds_is_read_as_python_would(path, protocol):
    value = corpus()
    found = load(path, pickle.dumps(value, protocol))
    assert same(found, value)
    kept = found["train"]  # arrays keep their order of bytes and of axes
    assert kept["big endian"].dtype.str == ">i4"
    assert kept["fortran"].flags.f_contiguous and not kept["fortran"].flags.c_contiguous


def test_arrays_without_rows_and_bytearrays_stay_as_they_are(path):
    for protocol in (3, 4, 5):
        for x in (np.zeros((0, 5)), np.zeros((3, 0), "U4"), np.zeros((0, 2), object)):
            assert same(load(path, pickle.dumps(x, protocol)), x)
    value = [bytearray(b"abc"), pickle.PickleBuffer(b"x"), pickle.PickleBuffer(bytearray(b"y"))]
    assert same(load(path, pickle.dumps(value, 5)), [bytearray(b"abc"), b"x", bytearray(b"y")])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_numpy_1_and_numpy_2_name_their_modules_differently(path, protocol):
    x = [np.arange(6.0).reshape(2, 3), np.float32(2.5)]
    content = pickle.dumps(x, protocol)
    assert b"numpy._core" in content
    if protocol >= 4:  # strings behind their lengths, all of it in a frame
        for old in (b"numpy._core.multiarray", b"numpy._core.numeric"):
            short = bytes([len(old) - 1]) + old.replace(b"_core", b"core")
            content = content.replace(bytes([len(old)]) + old, short)
        content = content[:2] + content[11:]
    content = content.replace(b"numpy._core", b"numpy.core")
    assert b"_core" not in content
    assert same(load(path, content), x)


def test_one_object_stays_one_and_an_index_given_twice_is_that_of_the_second(path):
    x = np.arange(3.0)
    first, second, word, other = load(path, pickle.dumps([x, x, "a word", "a word"]))
    assert first is second and word is other
    described = b"(K\x01q\x00" + shape(1) + dtype("u1") + b"\x89C\x01xtb"
    content = P4 + b"(" + ANNOUNCED + b"q\x00" + described + b"h\x00t."
    assert same(load(path, content), (np.array([ord("x")], np.uint8), 1))


# As Python 2 wrote {'train': [array([1., 2.]), 'gr\xf6\xdfe', u'gr\xf6\xdfe', 3L, True]}.
NUMBERS = struct.pack("<2d", 1.0, 2.0)
PYTHON_2 = {
    0: b"(dp1\nS'train'\np2\n(lp3\ncnumpy.core.multiarray\n_reconstruct\np4\n(cnumpy\nndarray\np5\n"
    b"(I0\ntS'b'\ntRp6\n(I1\n(I2\ntcnumpy\ndtype\np7\n(S'f8'\nI0\nI1\ntRp8\n(I3\nS'<'\nNNNI-1\nI-1\n"
    b"I0\ntbI00\nS'\\x00\\x00\\x00\\x00\\x00\\x00\\xf0?\\x00\\x00\\x00\\x00\\x00\\x00\\x00@'\ntb"
    b"aS'gr\\xf6\\xdfe'\np9\naVgr\xf6\xdfe\np10\naL3L\naI01\nas.",
    1: b"}q\x01U\x05trainq\x02]q\x03(cnumpy.core.multiarray\n_reconstruct\nq\x04(cnumpy\nndarray\n"
    b"q\x05(K\x00tU\x01btRq\x06(K\x01(K\x02tcnumpy\ndtype\nq\x07(U\x02f8K\x00K\x01tRq\x08(K\x03U\x01"
    b"<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tbI00\nU\x10" + NUMBERS + b"tb"
    b"U\x05gr\xf6\xdfeq\x09X\x07\x00\x00\x00gr\xc3\xb6\xc3\x9feq\x0aL3L\nI01\nes.",
    2: b"\x80\x02}q\x01U\x05trainq\x02]q\x03(cnumpy.core.multiarray\n_reconstruct\nq\x04"
    b"cnumpy\nndarray\nq\x05K\x00\x85U\x01b\x87Rq\x06(K\x01K\x02\x85cnumpy\ndtype\nq\x07U\x02f8K\x00K\x01\x87Rq\x08"
    b"(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
    b"T\x10\x00\x00\x00" + NUMBERS + b"tb"
    b"U\x05gr\xf6\xdfeq\x09X\x07\x00\x00\x00gr\xc3\xb6\xc3\x9feq\x0a\x8a\x01\x03\x88es.",
}


@pytest.mark.filterwarnings("ignore:numpy.core:DeprecationWarning")
@pytest.mark.parametrize("protocol", PYTHON_2)
def test_files_of_python_2_are_read_through_latin_1(path, protocol):
    found = load(path, PYTHON_2[protocol])
    assert same(found, {"train": [np.array([1.0, 2.0]), "größe", "größe", 3, True]})
    assert same(found, pickle.loads(PYTHON_2[protocol], encoding="latin1"))


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(),
    st.binary(min_size=1),  # protocols 0 to 2 write b"" as a call of bytes, which is not allowed
    st.sampled_from([np.float32(0.1), np.float64(np.nan), np.int8(-3), np.str_("é"), np.bool_(1)]),
)
keys = st.one_of(st.text(), st.integers(), st.booleans(), st.floats(allow_nan=False))
kinds = st.sampled_from("? i1 <i2 >i4 i8 u1 u8 f2 <f4 >f4 f8 S3 U1 <U4 >U2".split())
arrays = st_numpy.arrays(kinds, st_numpy.array_shapes(min_dims=0, max_dims=3, max_side=3))
object_arrays = st.lists(st.one_of(scalars, arrays), min_size=1, max_size=3).map(
    lambda items: np.fromiter(items, object, len(items))
)
nested = st.recursive(
    st.one_of(scalars, arrays, object_arrays),
    lambda children: st.one_of(
        st.lists(children, max_size=4),
        st.lists(children, max_size=4).map(tuple),
        st.dictionaries(st.one_of(keys, st.tuples(st.text(), st.integers())), children, max_size=4),
        st.dictionaries(st.text(), children, max_size=3).map(collections.OrderedDict),
        st.sets(keys, max_size=3),
        st.frozensets(keys, max_size=3),
    ),
    max_leaves=12,
)
in_a_shared_folder = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@settings(in_a_shared_folder, max_examples=150)
@given(value=nested, protocol=st.sampled_from(PROTOCOLS))
def test_any_structure_survives_any_protocol(path, value, protocol):
    content = pickle.dumps(value, protocol)
    assert same(load(path, content), pickle.loads(content))


def test_a_corpus_of_100_levels_is_read_and_one_of_101_is_not(path):
    found = load(path, P4 + b"]" * 100 + b"a" * 99 + b".")
    for _ in range(99):
        (found,) = found
    assert found == []
    deeper = P4 + b"]" * 101 + b"a" * 100 + b"."
    assert refusal(path, deeper) == "nests its values more than 100 deep."


# --- what is refused: programs ---


class Payload:
    def __init__(self, marker):
        self.command = f"touch '{marker}'"

    def __reduce__(self):
        return os.system, (self.command,)


def quoted(marker) -> bytes:
    return text(f"touch '{marker}'")


SYSTEM = name("posix", "system")
# What makes a file that asks for code, what it asks for, and whether Python itself would run it.
PROGRAMS = {
    "REDUCE": (lambda m: pickle.dumps(Payload(m)), "posix.system", True),
    "REDUCE of protocol 0": (lambda m: pickle.dumps(Payload(m), 0), "posix.system", True),
    "deep inside":
        (lambda m: pickle.dumps({"train": [({"id": Payload(m)},)]}), "posix.system", True),
    "INST": (lambda m: b"\x80\x02(V%b\nios\nsystem\n." % quoted(m)[2:], "os.system", True),
    "OBJ": (lambda m: P4 + b"(" + SYSTEM + quoted(m) + b"o.", "posix.system", True),
    "NEWOBJ": (lambda m: P4 + SYSTEM + quoted(m) + b"\x85\x81.", "posix.system", False),
    "NEWOBJ_EX": (lambda m: P4 + SYSTEM + quoted(m) + b"\x85}\x92.", "posix.system", False),
    "an array of objects":
        (lambda m: pickle.dumps(np.fromiter([Payload(m)], object, 1)), "posix.system", True),
    "the state of an array":
        (lambda m: P4 + ANNOUNCED + SYSTEM + quoted(m) + b"\x85Rb.", "posix.system", True),
    "a dotted name":
        (lambda m: P4 + name("posixpath", "os.system") + quoted(m) + b"\x85R.",
         "posixpath.os.system", True),
    "a dotted name of an allowed module":
        (lambda m: P4 + name("collections", "_sys.modules.get") + text("os") + b"\x85R.",
         "collections._sys.modules.get", False),
    "the name of an allowed function in another module":
        (lambda m: P4 + name("codecs", "encode") + text("a") + text("latin1") + b"\x86R.",
         "codecs.encode", False),
    "a name put together":
        (lambda m: P4 + b"\x8c\x05posix\x94\x8c\x06system\x940h\x01\x93" + quoted(m) + b"\x85R.",
         "posix.system", True),
    "eval":
        (lambda m: b"c__builtin__\neval\n(V__import__('os').system(%a)\ntR." % f"touch '{m}'",
         "__builtin__.eval", True),
    "numpy.load":
        (lambda m: P4 + name("numpy", "load") + text("x.npy") + b"N\x88\x87R.",
         "numpy.load", False),
    "a factory":
        (lambda m: P4 + name("collections", "defaultdict") + SYSTEM + b"\x85R.",
         "posix.system", False),
    "getattr": (lambda m: P4 + name("builtins", "getattr") + b".", "builtins.getattr", False),
    "bytes": (lambda m: pickle.dumps(b"", 2), "__builtin__.bytes", False),
    "an unknown line": (lambda m: b"cos\r\nsystem\n.", r"os\r.system", False),
}


@pytest.mark.filterwarnings("ignore:numpy.core:DeprecationWarning")
@pytest.mark.parametrize("case", PROGRAMS)
def test_a_program_is_refused_by_the_name_of_what_it_asks_for(tmp_path, path, case):
    make, asked, python_runs_it = PROGRAMS[case]
    marker = tmp_path / "executed"
    found = refusal(path, make(marker)).replace("; it stands at 'id'", "")
    assert found == (
        f"asks for '{asked}', which could run code; only pickles of numpy arrays, strings, "
        "numbers, lists, tuples, sets and dicts are read."
    )
    assert not marker.exists()
    if python_runs_it:
        # The state of an array is no number, but it is too late by then.
        with contextlib.suppress(TypeError):
            pickle.loads(make(marker))
        assert marker.exists()


def test_attributes_cannot_be_set(tmp_path, path):
    """With a `__setstate__` of its own choice an object would run what BUILD gives it."""
    ordered = name("collections", "OrderedDict") + b")R"
    for target in (ordered, b"}", b"]", name("builtins", "set") + b")R", dtype("f8")):
        found = refusal(path, P4 + target + b"}" + text("__setstate__") + b"Nsb.")
        assert found == "changes a value that is finished, which data alone never needs."
    done = array(shape(1), dtype("u1"), b"C\x01x")
    assert "changes a value that is finished" in refusal(path, P4 + done + b"(tb.")


@pytest.mark.parametrize(
    "opcode, content",
    {
        "INST": b"(cnumpy\nndarray\n0icollections\nOrderedDict\n.",
        "OBJ": P4 + b"(" + name("collections", "OrderedDict") + b"o.",
        "NEWOBJ": P4 + name("collections", "OrderedDict") + b")\x81.",
        "NEWOBJ_EX": P4 + name("collections", "OrderedDict") + b")}\x92.",
        "PERSID": b"Pwhatever\n.",
        "BINPERSID": b"\x80\x02K\x01Q.",
        "EXT1": b"\x80\x02\x82\x01.",
        "EXT2": b"\x80\x02\x83\x01\x01.",
        "EXT4": b"\x80\x02\x84\x01\x01\x01\x01.",
        "NEXT_BUFFER": b"\x80\x05\x97.",
        "READONLY_BUFFER": b"\x80\x05C\x01x\x98.",
    }.items(),
)
def test_opcodes_that_make_objects_or_point_elsewhere_are_refused(path, opcode, content):
    assert refusal(path, content) == f"uses the opcode {opcode}, which data alone never needs."


def test_allowed_names_do_only_what_data_needs(path):
    encode, default = name("_codecs", "encode"), name("collections", "defaultdict")
    for call in (
        encode + text("abc") + text("zlib") + b"\x86R",
        encode + text("abc") + text("utf-8") + b"\x86R",
        encode + text("abc") + b"\x85R",
        encode + text("abc") + text("latin1") + text("strict") + b"\x87R",
        encode + b"C\x03abc" + text("latin1") + b"\x86R",
        name("builtins", "set") + text("abc") + b"\x85R",
        default + name("numpy", "ndarray") + b"\x85R",
        default + text("abc") + b"\x85R",
        default + b"N}\x86R",
        name("collections", "OrderedDict") + b"]K\x01a\x85R",
        RECONSTRUCT + name("numpy", "ndarray") + shape(1 << 40) + b"C\x01b\x87R",
        RECONSTRUCT + name("builtins", "set") + b"K\x00\x85C\x01b\x87R",
        ANNOUNCED + b"(K\x01" + shape(1) + dtype("u1") + b"NC\x01xtb",
        ANNOUNCED + b"Nb",
        SCALAR + dtype("O8") + data(pickle.dumps(print)) + b"\x86R",
        SCALAR + text("f8") + data(bytes(8)) + b"\x86R",
        name("numpy", "dtype") + text("f8") + b"\x85R",
        name("numpy", "dtype") + b"N\x89\x88\x87R",
        dtype("f8", b"N"),
        dtype("f8", dtype_state(order="x")),
        dtype("f8", dtype_state(size=16)),
        dtype("U3", dtype_state(size=400)),
        buffer(shape(1), dtype("u1"), b"C\x01x", order="K"),
        FROMBUFFER + b"(C\x01x" + dtype("u1") + shape(1) + text("K") + shape(1) + b"tR",
    ):
        found = refusal(path, P4 + call + b".")
        assert re.fullmatch(r"calls [\w'. ]+ with other arguments than .* would write\.", found)


def test_the_flags_of_a_type_are_not_believed(path):
    """Numpy would take the number for a pointer, and follow it."""
    kind = dtype("f8", dtype_state(flags=63))
    found = load(path, P4 + array(shape(1), kind, data(struct.pack("<d", 2.5))) + b".")
    assert found.dtype == np.float64 and not found.dtype.hasobject
    np.testing.assert_array_equal(found, [2.5])


@pytest.mark.parametrize(
    "value", [np.zeros(2, "i4,f8"), np.zeros(2, "V3"), np.zeros(2, complex), np.zeros(2, "M8[s]")]
    + [np.longdouble([1, 2]), np.zeros(1, np.dtype((np.void, 4)))],
    ids=lambda value: str(value.dtype),
)
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_arrays_of_other_types_are_refused(path, value, protocol):
    found = refusal(path, pickle.dumps(value, protocol))
    wanted = r"has an array of type '[VcMf]\d+'; expected truth values, integers, floats of .*\."
    assert re.fullmatch(wanted, found)


def test_records_and_subclasses_of_an_array_are_refused(path):
    kind = dtype("f8", dtype_state(parts=b"N" + text("a") + b"\x85}"))
    assert "has an array of records" in refusal(path, P4 + kind + b".")
    assert "numpy.ma" in refusal(path, pickle.dumps(np.ma.masked_array([1.0], [True])))


def test_an_allowed_name_or_an_array_that_is_never_described_is_no_value(path):
    objects = array(shape(1), dtype("O8"), b"]" + RECONSTRUCT + b"a")
    for content, said in (
        (name("numpy", "ndarray"), r"holds numpy\.ndarray.* itself"),
        (b"]" + name("builtins", "set") + b"a", r"holds builtins\.set.* itself"),
        (objects, r"holds numpy\.core\.multiarray\._recon.* itself"),
        *((undescribed, ".*never describes it") for undescribed in (
            ANNOUNCED, b"](" + ANNOUNCED + b"e", ANNOUNCED + b"\x94]h\x00a\x86"
        )),
    ):
        assert re.match(said, refusal(path, P4 + content + b"."))


# --- what is refused: damage ---

SMALL = {"x": np.array([2.5]), "l": [1, (None, "k")]}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_file_that_ends_anywhere_is_refused(path, protocol):
    content = pickle.dumps(SMALL, protocol)
    assert same(load(path, content), SMALL)
    for end in reversed(range(len(content))):
        os.truncate(path, end)
        with pytest.raises(UserError) as caught:
            read_pickle(path)
        found = sentence(path, caught.value)
        assert re.fullmatch(r"ends too early\.|declares \d+ bytes where \d+ are left\.", found)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_changed_byte_anywhere_is_refused_or_read_as_data(path, protocol):
    content = pickle.dumps(SMALL, protocol)
    path.write_bytes(content)
    with open(path, "r+b", buffering=0) as file:
        for where, byte in enumerate(content):
            for flip in (1, 2, 4, 8, 16, 32, 64, 128, 0):
                os.pwrite(file.fileno(), bytes([byte ^ flip]), where)
                read_or_refused(path)
    assert path.read_bytes() == content


def read_or_refused(path: pathlib.Path) -> None:
    try:
        read_pickle(path)
    except UserError as error:
        sentence(path, error)


DECLARES = "declares {} bytes where 2 are left."


def senseless(byte: int) -> str:
    return f"is damaged or no pickle: it makes no sense near byte {byte}."


def bad_key(kind: str) -> str:
    return f"has a {kind} as a key that is no string, number or short tuple."


CYCLE = "has a value that contains itself."


@pytest.mark.parametrize(
    "content, reason",
    {
        b"": "ends too early.",
        b"\x89HDF\r\n": senseless(2),
        b"\x80\x06N.": "is a pickle of protocol 6; 0 to 5 are known.",
        b"N.N.": "goes on after its end, at byte 2 of 4.",
        b"NN.": senseless(3),
        b"(N.": senseless(3),
        b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b"N.": DECLARES.format(1 << 60),
        b"\x8e" + struct.pack("<Q", 1 << 62) + b"x.": DECLARES.format(1 << 62),
        b"\x8d" + struct.pack("<Q", 1 << 63) + b"x.": DECLARES.format(1 << 63),
        b"\x96" + struct.pack("<Q", 1 << 40) + b"x.": DECLARES.format(1 << 40),
        b"B\xff\xff\xff\xffx.": DECLARES.format(0xFFFFFFFF),
        b"T\xff\xff\xff\xffx.": senseless(5),
        b"\x8b\xff\xff\xff\x7fx.": DECLARES.format(0x7FFFFFFF),
        b"\x8b\x00\x01\x00\x00" + b"\x7f" * 256 + b".": "holds an integer of 256 bytes.",
        P4 + b"L" + b"9" * 5000 + b"L\n.": "holds a number of 5001 digits.",
        b"Nr\xff\xff\xff\x7f.": senseless(6),
        b"Nq\x00p-1\n.": senseless(7),
        b"Nq\x00g-1\n.": senseless(7),
        b"Nq\x03h\x01.": senseless(5),
        b"S'\\q'\n.": senseless(6),
        b"V\\ud800\n.": senseless(8),
        b"X\x03\x00\x00\x00\xed\xa0\x80.": senseless(8),
        b"]q\x00h\x00a.": CYCLE,
        b"]q\x00h\x00\x85a.": CYCLE,
        b"}q\x00K\x01h\x00s.": CYCLE,
        b"}]K\x01s.": bad_key("list"),
        b"}K\x01\x85\x85K\x01s.": bad_key("tuple"),
        b"}(" + b"N" * 9 + b"tNs.": bad_key("tuple"),
        b"\x8f((N\x91\x90.": bad_key("frozenset"),
    }.items(),
)
def test_what_is_wrong_is_said(path, content, reason):
    assert refusal(path, content) == reason


@pytest.mark.parametrize("make", [array, buffer])
def test_an_array_is_as_large_as_its_bytes_or_refused(path, make):
    for sizes, kind, content, reason in (
        (shape(1 << 40), "f8", 8, r"float64 of shape \(1099511627776,\), which takes 87960930222"),
        (shape(3), "f8", 16, r"takes 24 bytes, but brings 16"),
        (shape(1), "f8", 16, r"takes 8 bytes, but brings 16"),
        (shape(1 << 62, 1 << 62, 4), "f8", 0, r"takes 6\d{38} bytes, but brings 0"),
        (shape(0, 1 << 62), "f8", 0, r"would take far more memory or time than a file of its size"),
        (shape(-1, -8), "u1", 8, r"has an array without a valid type or shape"),
        (shape(1 << 63), "u1", 8, r"has an array without a valid type or shape"),
        (shape(*[1] * 65), "u1", 1, r"has an array without a valid type or shape"),
        (b"]K\x01a", "u1", 1, r"has an array without a valid type or shape"),
        (b"\x88\x85", "u1", 1, r"has an array without a valid type or shape"),
        (shape(1 << 40), "U0", 0, r"would take far more memory or time than a file of its size"),
        (shape(1), "U9999999", 4, r"takes 39999996 bytes, but brings 4"),
    ):
        found = refusal(path, P4 + make(sizes, dtype(kind), data(bytes(content))) + b".")
        assert re.search(reason, found), found


def test_an_array_of_objects_has_as_many_as_it_says(path):
    contents = (b"]", b"]NaNaNa", b"N", data(bytes(16)), b"(NNt")
    made = [array(shape(2), dtype("O8"), content) for content in contents]
    for content in (*made, buffer(shape(2), dtype("O8"), data(bytes(16)))):
        found = refusal(path, P4 + content + b".")
        assert found == "has an array of object of shape (2,) without as many objects."


def test_bytes_that_are_no_truth_values_or_characters_are_refused(path):
    kind, content = dtype("b1"), data(b"\x01\x02")
    assert "truth values that are neither 0 nor 1" in refusal(
        path, P4 + array(shape(2), kind, content) + b"."
    )
    for code in (0x110000, 0xD800, 0xFFFFFFFF):
        for made in (
            buffer(shape(1), dtype("U1"), data(struct.pack("<I", code))),
            SCALAR + dtype("U1") + data(struct.pack("<I", code)) + b"\x86R",
        ):
            found = refusal(path, P4 + made + b".")
            assert found == "holds characters that Unicode does not have."


def test_a_path_that_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for place, reason in (
        (tmp_path / "gone", "cannot be read: No such file or directory."),
        (tmp_path, "cannot be read: it is no regular file."),
        (tmp_path / "pipe", "cannot be read: it is no regular file."),
    ):
        with pytest.raises(UserError) as caught:
            read_pickle(str(place))
        assert sentence(place, caught.value) == reason


# --- recognising a pickle ---


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "value",
    [corpus(), SMALL, [1.5] * 3000, ("v",) * 3000, {i: "V" * i for i in range(300)}, None, "text"]
    + [np.arange(3000.0), set(range(3000)), collections.OrderedDict.fromkeys(range(3000)), 1]
    + [collections.defaultdict(None, x=np.zeros(3000)), [np.float32(1)] * 900],
    ids=lambda value: type(value).__name__,
)
def test_a_pickle_is_recognised_whole_and_cut_and_by_any_name(tmp_path, value, protocol):
    path = tmp_path / "data.csv"
    content = pickle.dumps(value, protocol)
    path.write_bytes(content)
    assert same(read_pickle(path), value)
    if protocol >= 2 or len(content) > 4100:
        path.write_bytes(content[:-1])
        assert is_recognised(path)


OTHER_FILES = (
    # Too short, signatures of protocols that there are not, and other signatures:
    *(b"", b".", b"\x80", b"\x80\x01N.", b"\x80\x06N.", b"\x80\x04\xff"),
    *(b"\x89HDF\r\n\x1a\n" + bytes(100), b"\x93NUMPY\x01\x00v\x00{'descr': '<f8'}"),
    *(b"\xff\xfei\x00d\x00", b"\xef\xbb\xbfid,label\n"),  # UTF-16, UTF-8 with a mark
    *(b"\x7fELF\x02\x01\x01" + bytes(100), b"\x89PNG\r\n\x1a\n"),
    # Tables, of which some have opcodes ahead or in every line:
    *(b"id,label\na,1\n", b"Video,label\nV1,0.5\n", b"clip_id,text,label\n" * 999),
    *(b"".join(line % i for i in range(999)) for line in (b"Video_%d,0.5\n", b"clip%d\n")),
    *(b"I,F,L\n1,2,3\n", b"I1\n" * 2000, b"0.1,0.2\n0.3,0.4\n", b"-1.5\n"),
    # Text:
    *(b"(a, b)\n", b"[1, 2, 3]", b'{"train": ["a"]}', b"No.", b"N" * 5000, b"("),
    *(b"N.\nand so on\n", b"(Vtouch\nios\nsystem\n."),  # more than a pickle; no signature
    b"Great movie, I laughed all the time and then some more.\n",
    b"The film is .\n",
    b"the 0.418 0.24968 -0.41242\nof 0.70853 0.57088 -0.4716\n",
)


def test_other_files_are_not_taken_for_pickles(path):
    for content in OTHER_FILES:
        path.write_bytes(content)
        assert not is_recognised(path), content[:60]


def test_archives_and_the_text_around_here_are_not_taken_for_pickles(tmp_path):
    np.savez(tmp_path / "corpus.npz", x=np.zeros(3))
    np.save(tmp_path / "x.npy", np.zeros(3))
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("inside.pkl", pickle.dumps(SMALL))
    (tmp_path / "glove.txt.gz").write_bytes(gzip.compress(b"the 1 2 3\n" * 999))
    root = pathlib.Path(__file__).resolve().parent.parent
    files = [*tmp_path.iterdir(), *root.glob("*.*"), *root.rglob("tests/*.py")]
    files = [file for file in files if file.is_file()]
    assert len(files) > 40
    assert [file.name for file in files if is_recognised(file)] == []

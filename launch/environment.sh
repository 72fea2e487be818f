# Sourced by the launch scripts. Sets `root` to the project's folder; `prepare_environment FILE...`
# makes its .venv hold what those requirement files ask for and the project itself, importable from
# any folder and with its command `msajax`; `python` is set to its interpreter.
#
# PYTHON names the interpreter that .venv must come from; one that trains without .venv has another
# name, MSAJAX_PYTHON. Without PYTHON a working .venv is kept, and a new one comes from the first of
# `candidates` on PATH that is new enough.
#
# While .venv is being made or installed into it holds `.unfinished`, with our process id: an
# interrupted installation is never mistaken for a whole one. For every installed file it keeps a
# copy, with the Python version, so that pip is called only when something has changed.

root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
python=$root/.venv/bin/python
candidates=(python3 python3.13 python3.12 python3.11)

fail() {
  printf '%s\n' "$1" >&2
  exit 2
}

# probe INTERPRETER MODULES: prints "VERSION EXECUTABLE" when it is Python 3.11 or newer and has the
# modules. EXECUTABLE is the one behind a virtual environment: .venv itself may be active, and about
# to be removed.
probe() {
  local answer
  answer=$("$1" -c "import sys, $2
print('%d.%d.%d' % sys.version_info[:3], getattr(sys, '_base_executable', sys.executable))" \
    2>/dev/null) || return 1
  [[ $answer =~ ^([0-9]+)\.([0-9]+)\. ]] || return 1
  ((BASH_REMATCH[1] > 3 || (BASH_REMATCH[1] == 3 && BASH_REMATCH[2] >= 11))) || return 1
  printf '%s\n' "$answer"
}

# Prints what probe prints, for the interpreter that a new .venv is to come from.
find_python() {
  local needs="msajax needs Python 3.11 or newer with the venv module (package python3-venv on \
Debian and Ubuntu)"
  local candidate
  if [[ -n ${PYTHON:-} ]]; then
    probe "$PYTHON" 'ensurepip, venv' || fail "$needs, which PYTHON=$PYTHON is not."
    return
  fi
  for candidate in "${candidates[@]}"; do
    if probe "$candidate" 'ensurepip, venv'; then
      return
    fi
  done
  fail "$needs, which none of ${candidates[*]} on PATH is: install it, or set PYTHON to its path."
}

prepare_environment() {
  local venv=$root/.venv
  local base='' found='' owner='' changed='' file
  local arguments=()

  if [[ -n ${PYTHON:-} ]]; then
    base=$(find_python) || exit
  fi
  if [[ -e $venv/.unfinished ]]; then
    owner=$(<"$venv/.unfinished")
    if [[ -n $owner && $owner != "$$" ]] && kill -0 "$owner" 2>/dev/null; then
      fail "Process $owner is installing into .venv: wait until it is done, or remove .venv."
    fi
  else
    found=$(probe "$python" pip) || found=''
  fi

  if [[ -z $found || (-n $base && ${found%% *} != "${base%% *}") ]]; then
    if [[ -z $base ]]; then
      base=$(find_python) || exit
    fi
    found=$base
    echo "Making .venv with Python ${base%% *}" >&2
    rm -rf "$venv"
    mkdir "$venv"
    echo "$$" >"$venv/.unfinished"
    "${base#* }" -m venv "$venv" || fail "Python could not make .venv; its message is above."
  fi

  for file in pyproject.toml "$@"; do
    if [[ $file == pyproject.toml ]]; then
      arguments+=(--editable "$root")
    else
      arguments+=(--requirement "$root/$file")
    fi
    if [[ ! -f $venv/.installed-$file ||
      $(<"$venv/.installed-$file") != "$(installed "${found%% *}" "$file")" ]]; then
      changed=yes
    fi
  done
  if [[ -n $changed ]]; then
    echo "Installing $* into .venv: about a minute" >&2
    echo "$$" >"$venv/.unfinished"
    # Byte code is left to the first import: compiling all of it takes longer than the rest.
    "$python" -m pip install --quiet --disable-pip-version-check --no-compile "${arguments[@]}" ||
      fail "pip could not install $*; its message is above. The same command tries again."
    for file in pyproject.toml "$@"; do
      installed "${found%% *}" "$file" >"$venv/.installed-$file"
    done
  fi
  rm -f "$venv/.unfinished"
}

# installed VERSION FILE: what .venv keeps of a requirement file that it holds.
installed() {
  printf '%s\n%s\n' "Python $1" "$(<"$root/$2")"
}

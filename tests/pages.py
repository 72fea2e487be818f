"""The README and the pages of docs/: what of them is code, and which commands they hold."""

import pathlib
import re
import shlex

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
}


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a page that are in a language."""
    return [code for name, code in fences(page) if name == language]


def fences(page: str) -> list[tuple[str, str]]:
    """Every fenced block of a page, with its language."""
    return re.findall(r"(?ms)^```(.*?)\n(.*?)^```$", PAGES[page])


def commands(page: str, section: str | None = None) -> list[str]:
    """The commands of a page's blocks, or of one of its sections, a line each."""
    text = PAGES[page]
    if section is not None:
        (text,) = re.findall(rf"(?ms)^## {re.escape(section)}$(.*?)(?=^## |\Z)", text)
    code = "\n".join(re.findall(r"(?ms)^```bash\n(.*?)^```$", text))
    return [line for line in joined(code).splitlines() if line]


def joined(code: str) -> str:
    """Commands with the lines that a backslash continues, a line each."""
    return re.sub(r"\\\n *", "", code)


def spans(page: str) -> list[str]:
    """What a page sets as code in its sentences, line breaks as spaces."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose(page))]


def prose(page: str) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"(?ms)^```.*?^```$", "", PAGES[page])


def words_of(line: str) -> list[str]:
    """The arguments of a command, with a real file and number for what stands for one."""
    line = line.replace("configs/NAME.py", "configs/gru.py")
    line = line.replace("--config FILE", "--config configs/gru.py").removesuffix(" …")
    return shlex.split(re.sub(r"=k\b", "=5", line), comments=True)

"""Says English words in the phones of PocketSphinx's dictionary, those that it lacks by rule."""

import re
import unicodedata
from collections.abc import Callable

DICTIONARY, SPELLED, GUESSED, FROM_FILE, NONE = 0, 1, 2, 3, -1
"""Where the times of a word come from: `word_origin` of a corpus."""

_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_LARGE = ((10**9, "billion"), (10**6, "million"), (1000, "thousand"), (100, "hundred"))
_ORDINALS = dict(
    zip(
        "one two three five eight nine twelve".split(),
        "first second third fifth eighth ninth twelfth".split(),
        strict=True,
    )
)
_SIGNS = {"%": "percent", "&": "and", "+": "plus"}

# What letters sound like, the first that matches where a word is read; letters before and behind
# are seen through (?<=…) and (?=…).
_RULES = [
    (re.compile(letters), sounds.split())
    for letters, sounds in (
        *(("tion", "SH AH N"), ("ssion", "SH AH N"), ("sion", "ZH AH N"), ("[ct]ious", "SH AH S")),
        *(("[ct]ial", "SH AH L"), ("ture$", "CH ER"), ("sure$", "ZH ER"), ("ous$", "AH S")),
        *(("eigh", "EY"), ("igh", "AY"), ("[ao]ugh(?=t)", "AO"), ("ough", "OW"), ("tch", "CH")),
        *(("dge", "JH"), ("sch", "S K"), ("^kn|^gn|^pn", "N"), ("^wr", "R")),
        *(("^ps", "S"), ("^x", "Z"), ("^rh", "R"), ("mb$", "M"), ("^who", "HH UW"), ("wh", "W")),
        *(("ph", "F"), ("sh", "SH"), ("ch", "CH"), ("th", "TH"), ("ck", "K"), ("qu", "K W")),
        *(("^gh", "G"), ("gh", ""), ("ngs?$", "NG"), ("n(?=[kx])", "NG"), ("gu(?=[ei])", "G")),
        *(("(?<=[td])ed$", "IH D"), ("(?<=[pkfsx])ed$", "T"), ("(?<=[a-z]{2})ed$", "D")),
        *(("(?<=[sxz])es$", "IH Z"), ("(?<=[cs]h)es$", "IH Z"), ("(?<=[a-z]{2}le)s$", "Z")),
        *(("(?<=[^aeiouy])le$", "AH L"), ("ai?re?$", "EH R"), ("eer|ear", "IH R"), ("oor", "AO R")),
        *(("our", "AO R"), ("arr?", "AA R"), ("orr?e?", "AO R"), ("[eiu]rr?e?", "ER")),
        *(("ee|ea|ie(?=[a-z])|ei", "IY"), ("ai|ay|ey(?=[a-z])", "EY"), ("ey$|ie$", "IY")),
        *(("oa|oe$", "OW"), ("oo|ou$|ue$|ui", "UW"), ("ou", "AW"), ("ow$", "OW"), ("ow", "AW")),
        *(("oi|oy", "OY"), ("au|aw", "AO"), ("ew|eu", "Y UW"), ("ia$", "IY AH"), ("io", "IY OW")),
        # A vowel before one consonant and a last e says its name.
        *(("a(?=[^aeiouywx]es?$)", "EY"), ("e(?=[^aeiouywx]es?$)", "IY")),
        *(("[iy](?=[^aeiouywx]es?$)", "AY"), ("o(?=[^aeiouywx]es?$)", "OW")),
        *(("u(?=[^aeiouywx]es?$)", "UW"), ("(?<=[a-z]{2})e(?=s?$)", "")),
        *(("a$", "AH"), ("e$", "IY"), ("i$", "IY"), ("o$", "OW"), ("u$", "UW")),
        *(("^y(?=[aeiou])", "Y"), ("(?<=^[a-z])y$", "AY"), ("y$", "IY"), ("y", "IH")),
        *(("c(?=[eiy])", "S"), ("g(?=[eiy])", "JH"), (r"([bcdfgjklmnprstvz])(?=\1)", "")),
        *(("a", "AE"), ("e", "EH"), ("i", "IH"), ("o", "AA"), ("u", "AH"), ("x", "K S")),
        *(("(?<=[bdgjlmnrvwaeiouy])s$", "Z"), ("h", "HH"), ("j", "JH"), ("[cq]", "K")),
        *((letter, letter.upper()) for letter in "bdfgklmnprstvwz"),
    )
]


def guess(word: str) -> list[str]:
    """Guesses the phones of a word of the letters a to z by rules of English spelling."""
    phones, at = [], 0
    while at < len(word):
        found = ((rule.match(word, at), sounds) for rule, sounds in _RULES)
        match, sounds = next(((m, s) for m, s in found if m and m.end() > at), (None, []))
        phones += sounds
        at = match.end() if match else at + 1
    return phones


def spell_number(digits: str) -> list[str]:
    """Says a number in words: `1,250` as one thousand two hundred fifty, `0.5` as zero point five.

    Four digits from 1100 to 1999 are two pairs, as years are said.
    """
    whole, _, decimals = digits.replace(",", "").partition(".")
    value = int(whole or 0)
    if value >= 10**12 or (len(whole) > 1 and whole[0] == "0"):  # digit by digit
        said = [_SMALL[int(digit)] for digit in whole]
    elif 1100 <= value < 2000 and value % 100 and len(whole) == 4 and "," not in digits:
        pair = [] if value % 100 > 9 else ["o"]
        said = _say(value // 100) + pair + _say(value % 100)
    else:
        said = _say(value)
    return said + (["point", *(_SMALL[int(digit)] for digit in decimals)] if decimals else [])


def _say(value: int) -> list[str]:
    if value < 20:
        return [_SMALL[value]]
    for size, name in _LARGE:
        if value >= size:
            return _say(value // size) + [name] + (_say(value % size) if value % size else [])
    return [_TENS[value // 10 - 2], *([_SMALL[value % 10]] if value % 10 else [])]


def words_of(transcript: str) -> list[str]:
    """Splits a transcript into words, without punctuation around them and notes as [laughs]."""
    spoken = re.sub(r"\[[^\]]*\]|<[^>]*>", " ", transcript.replace("’", "'"))
    words = (re.sub(r"^[^\w%&+]+|[^\w%&+']+$", "", word) for word in spoken.split())
    return [word for word in words if re.search(r"[\w%&+]", word)]


def pronounce(
    word: str, lookup: Callable[[str], str | None]
) -> tuple[str, list[str] | None, int] | None:
    """Says how a word of `words_of` is spoken.

    Args:
        lookup: returns the phones of a word of the dictionary, in lower case; None for others.

    Returns:
        What to call it, its phones if the dictionary lacks it, and DICTIONARY, SPELLED (numbers,
        letters and compounds of words that the dictionary has) or GUESSED. None for a word that
        has no letters of English.
    """
    plain = unicodedata.normalize("NFKD", word).encode("ascii", "ignore").decode()
    name = plain.lower()
    if lookup(name) is not None:
        return name, None, DICTIONARY
    if lookup(name.strip("'")) is not None:
        return name.strip("'"), None, DICTIONARY
    phones: list[str] = []
    origin = SPELLED
    for part in re.findall(r"\d[\d,]*(?:\.\d+|st|nd|rd|th)?|[A-Za-z']+|[%&+]", plain):
        if part[0].isdigit():
            parts = spell_number(part.rstrip("sthnrd"))
            if part[-1].isalpha():
                last = parts[-1]
                parts[-1] = _ORDINALS.get(last) or re.sub("y$", "ie", last) + "th"
        elif part.isupper() and 1 < len(part) < 6:
            parts = [letter.lower() for letter in part]
        else:
            parts = [_SIGNS.get(part, part.lower().strip("'"))]
        for said in filter(None, parts):
            known = lookup(said)
            origin = origin if known is not None else GUESSED
            phones += known.split() if known is not None else guess(re.sub("[^a-z]", "", said))
    # Named by its sounds: "US" and "us" differ in them, and no word begins with =.
    return (f"={'_'.join(phones)}", phones, origin) if phones else None

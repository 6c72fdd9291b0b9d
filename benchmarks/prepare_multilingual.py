"""Make folders of general German, French and Spanish for prepare_general.py, from openly licensed sources.

    python benchmarks/prepare_multilingual.py --sources <folder> --output <folder> --held-out <folder of JSON lines>
    python benchmarks/prepare_general.py --folder en=<folder> de=<output>/de fr=<output>/fr --output multilingual.jsonl

``--sources`` holds what SOURCES names: clones of GitHub repositories as ``<owner>+<name>``, unpacked Debian packages
(``dpkg-deb -x``) by name, and Debian's translated package descriptions (``i18n/Translation-*.bz2`` of an archive) in
``descriptions``. A source that is not there is left out, with a line that says so. ``<source>.jsonl.gz`` gets the
sentences, ``<source>_passages.jsonl.gz`` the texts of 40 words and more, ``README.md`` of each language the rows and
licences. A text that repeats an earlier one of the language, or a held-out one, is left out.
"""

from __future__ import annotations

import gzip
import html
import io
import json
import re
import struct
import unicodedata
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from measuring import command_line, read_rows
from prepare_general import PASSAGES, uniform

Reader = Callable[[bytes], Iterator[str]]
LANGUAGES = {  # as patterns of files name them
    "de": ("de", "deu", "german", "German"),
    "fr": ("fr", "fra", "french", "French"),
    "es": ("es", "spa", "spanish", "Spanish"),
}
SHORTEST, PASSAGE, LONGEST_PASSAGE = 3, 40, 128  # words
WHOLE = 15  # words of a paragraph that is never cut into sentences
COMMON = {  # words that tell the languages apart
    "de": "der die das und ist nicht ich ein eine zu mit auf für den dem von im sich wird werden sie wir auch als bei "
    "aus nach hat dass oder zum zur sind haben kann wenn nur noch wie was",
    "fr": "le les des est et une dans pas pour vous nous je il elle qui sur au avec ce sont du ou par l d qu n c j ne "
    "cette votre être vos aux ces ses son sa",
    "es": "el los las y una por con para del se su lo al como está más pero sus este esta ha son tu muy usted puede "
    "ser sin sobre",
    "en": "the and of to is you that it for with are this be have not by from your can will was they",
}
COMMON_WORDS = {language: frozenset(words.split()) for language, words in COMMON.items()}
WORDS = re.compile(r"[^\W\d_]+")
SENTENCE_END = re.compile(
    r"""(?:(?<=[.!?…])|(?<=[.!?…]["»”“\u2019'])|(?<=[.!?…]\s»))\s+(?=["«»„“¿¡—\u2013-]?\s?[A-ZÀ-Þ¿¡\d])"""
)
ABBREVIATION = re.compile(
    r"(?:\b(?:\w|\d+|Dr|Prof|Nr|Art|Abs|Ziff|Bd|Buchst|bzw|ca|usw|vgl|evtl|ggf|Hr|Fr|St|Mr|Mme|Mlle|art|al|chap|etc|"
    r"cf|Sr|Sra|Srta|Vd|Ud|Uds|núm|núms|pág|ej|ex|Lic|Ing|Ley|inc)\.|\d)$"
)
UNCLEAN = re.compile(
    r"https?:|www\.|\.(?:com|org|html?|php)\b|[<>{}|\\_=*#~^`@$\[\]§©®•·\xd7→←↑↓\ufffd]|%[\w(]|&\w+;|\.{4}|--|\( ?\)|"
    r"[\u0370-\u1cff\u2e80-\ud7ff\uf900-\ufdff\ufe30-\uffff]"
)
MARKED = re.compile(r"<(p|para|seg|desc|item|li|dd)\b[^>]*>(.*?)</\1>", re.DOTALL)
ASIDE = re.compile(
    r"<(teiHeader|front|speaker|stage|note|head|script|style|pre|code|screen|cmd|kinesic|vocal|incident|footer|fw|mal:credit)\b.*?</\1>|<!--.*?-->",
    re.DOTALL,
)
TAG = re.compile(r"<[^>]*>")
GAP = re.compile(r"<m:math|<link\b[^>]*/>")  # in its place the text would have a hole
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
QUOTED = re.compile(r"""\A["']([^"]*)["']\Z""")
FENCE = re.compile(r"\A---\n.*?\n---\n|^```.*?^```|^Description-md5.*?$|^Package:.*?$", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"\n\s*(?:[.%]\s*)?\n|\n(?=\s*(?:[-*+#>|]|\d+[.)]|\[\d)\s?)")
MARK = re.compile(r"^(?:[-*+#>]+|\(?\d+\w?[.)]|\w\)|\[\d+:\d+\]|Description-\w+:|Art(?:ículo|icle|\.)? \d+\S*[.-]*)\s+")
KEYED = re.compile(
    r"""^[ \t]*(?:["']?[\w.\-/ ]+["']?[ \t]*[=:]|dialogStr\(|(?:new|\w{1,3})(?=[ ]"))"""
    r"""[ \t]*(["']?)(\S.*?)\1(?:(?<=["'])[,)]*)?[ \t]*$""",
    re.MULTILINE,
)
CONTINUED = re.compile(
    r"""^([ \t]*)([\w./"'-]+:[ ][^\n"{[]+\n(?:\1[ \t]+(?!["'/\w.-]+[ ]?[:=]|- |[#"'])\S.*(?:\n|\Z))+)""", re.MULTILINE
)
FOLDED = re.compile(r"""(?<=[:=])[ \t]*(?:[>|]-?)?\n((?:[ \t]+(?!["'/\w.-]+[ ]?[:=]|- )\S.*(?:\n|\Z))+)""")


class Source(NamedTuple):
    """A source.

    Attributes:
        name: Of its files.
        licence: Of the text, as the source states it.
        read: Gives the paragraphs of a file.
        places: Patterns below ``--sources``, by space, with {0} to {3} of LANGUAGES; or of one language.
        most: Rows at most of a language.
    """

    name: str
    licence: str
    read: Reader
    places: str | dict[str, str]
    most: int = 60_000


def decoded(data: bytes) -> str:
    """The text of a file in UTF-8, else Latin-1."""
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        return data.decode("latin-1").replace("\r\n", "\n")


def lines(data: bytes) -> Iterator[str]:
    """A paragraph a line; of several columns the last that has words."""
    for line in decoded(data).split("\n"):
        yield max(reversed(line.split("\t")), key=lambda part: " " in part)


def pairs(data: bytes) -> Iterator[str]:
    """The second column of the tab-separated files of a zip file; else the lines."""
    if not data.startswith(b"PK"):
        yield from lines(data)
        return
    with zipfile.ZipFile(io.BytesIO(data)) as packed:
        for name in packed.namelist():
            if name.endswith(".txt") and not Path(name).name.startswith(("_", ".")):
                rows = (line.split("\t") for line in decoded(packed.read(name)).split("\n"))
                yield from (row[1] for row in rows if len(row) > 1)


def conllu(data: bytes) -> Iterator[str]:
    """The sentences of a treebank."""
    yield from re.findall(r"^# text = (.*)$", decoded(data), re.MULTILINE)


def paragraphs(data: bytes) -> Iterator[str]:
    """Paragraphs of plain text or Markdown."""
    for block in BLOCK.split(FENCE.sub("\n\n", decoded(data))):
        if "    " not in block.strip():
            yield re.sub(r"\*\*|__|[`*]", "", LINK.sub(r"\1", MARK.sub("", MARK.sub("", block.strip()))))


def marked(data: bytes) -> Iterator[str]:
    """Paragraphs of HTML or XML; title pages, speakers, stage directions, notes and code left out."""
    for _, text in MARKED.findall(ASIDE.sub(" ", decoded(data))):
        if not GAP.search(text):
            yield html.unescape(TAG.sub(" " if "<br" in text else "", text))


def keyed(data: bytes) -> Iterator[str]:
    """Values of ``key: value`` and ``key = value`` lines, as in YAML, JSON, property files and scripts of games."""
    text = FOLDED.sub(lambda found: f" {' '.join(found[1].split())}\n", decoded(data))
    text = CONTINUED.sub(lambda found: f"{' '.join(found[2].split())}\n", text)
    for _, value in KEYED.findall(text):
        yield from (
            html.unescape(TAG.sub("", value)).replace('\\"', '"').replace("\\'", "'").replace("''", "'").split("\\n")
        )


def catalogue(data: bytes) -> Iterator[str]:
    """Translations of a compiled catalogue (.mo)."""
    order = "<" if data[:4] == b"\xde\x12\x04\x95" else ">"
    count, _, start = struct.unpack(f"{order}3I", data[8:20])
    for entry in range(1, count):  # the first is the header
        length, place = struct.unpack(f"{order}2I", data[start + 8 * entry : start + 8 * entry + 8])
        for form in data[place : place + length].split(b"\0"):
            yield from re.split(r"\n\s*\n", re.sub(r"</?\w+>|(?<=\w)_(?=\w)|[&_~](?=\w)", "", decoded(form)))


def po(data: bytes) -> Iterator[str]:
    """Translations of a source catalogue (.po)."""
    for entry in re.findall(r'^msgstr((?:\s*"(?:[^"\\]|\\.)*")+)', decoded(data), re.MULTILINE):
        text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', entry))
        yield re.sub(r":\w+:`~?([^`<]*?)\s*(?:<[^`]*)?`|[`*]+", r"\1", text.replace('\\"', '"').replace("\\n", " "))


def unpacked(data: bytes) -> Iterator[str]:
    """Paragraphs of a file packed by bzip2."""
    import bz2

    text = re.sub(rb"^ ", b"", bz2.decompress(data), flags=re.MULTILINE)
    yield from paragraphs(re.sub(rb"^(Description-\w+: .*)$", rb"\n\1\n", text, flags=re.MULTILINE))


PUBLIC = "public domain (official text)"
GPL = "GPL 2 or later"
UD = "UniversalDependencies+UD_"
SOURCES = (
    Source("tatoeba", "CC BY 2.0 FR", pairs, "*+*/{1}-eng.zip facebookresearch+LASER/data/tatoeba/v1/*.{1}", 130_000),
    Source("common_voice", "CC0 1.0", lines, "mozilla+common-voice/server/data/{0}/*", 80_000),
    Source("recording_prompts", "MIT", lines, "rhasspy+piper-recording-studio/prompts/*_{0}-*/*.txt"),
    Source("thorsten_voice", "CC0 1.0", lines, {"de": "thorstenMueller+Thorsten-Voice/german_corpus*.csv"}),
    Source("chatterbot", "BSD 3-Clause", paragraphs, "gunthercox+chatterbot-corpus/**/{2}/*.yml"),
    Source("home_assistant_intents", "CC BY 4.0", paragraphs, "home-assistant+intents/tests/{0}/*.yaml"),
    Source("treebanks", "CC BY-SA 4.0", conllu, f"{UD}{{3}}-GSD/*.conllu {UD}{{3}}-Rhapsodie/*.conllu "
           f"{UD}{{3}}-ParisStories/*.conllu"),
    Source("pud", "CC BY-SA 3.0", conllu, f"{UD}{{3}}-PUD/*.conllu"),
    Source("sequoia_treebank", "LGPL-LR", conllu, {"fr": f"{UD}French-Sequoia/*-ud-*.conllu"}),
    Source("fortunes", f"{GPL} (package); quotations", paragraphs, {
        "de": "fortunes-de/**/fortunes/de/*.u8", "es": "fortunes-es/**/fortunes/**/*.fortunes"}, 12_000),
    Source("wesnoth", GPL, catalogue, "wesnoth-*/**/locale/{0}/LC_MESSAGES/*.mo"),
    Source("widelands", GPL, catalogue, "widelands-data/**/locale/{0}/LC_MESSAGES/*.mo"),
    Source("freedroid_rpg", GPL, catalogue, "freedroidrpg-data/**/locale/{0}/LC_MESSAGES/*.mo"),
    Source("valyria_tear", GPL, po, "ValyriaTear+ValyriaTear/po/{0}/*.po"),
    Source("tuxemon", "GPL 3", po, "Tuxemon+Tuxemon/mods/tuxemon/l18n/{0}_??/LC_MESSAGES/*.po"),
    Source("fish_fillets", GPL, keyed, "fillets-ng-data/**/script/*/*dialogs_{0}.lua"),
    Source("pixel_dungeon", "GPL 3", keyed, "00-Evan+shattered-pixel-dungeon/**/*_{0}.properties"),
    Source("renpy", "MIT", keyed, "renpy+renpy/**/tl/{2}/*.rpy"),
    Source("sky_cultures", f"{GPL}; Free Art", marked, "stellarium-data/**/description.{0}.utf8"),
    Source("parliament", PUBLIC, lines, {"de": "bundestag+plpr-scraper/data/txt/*.txt"}),
    Source("parliament", PUBLIC, marked, {"fr": "nlegrand+mariagepourtousInXML/files/xml/*.xml"}),
    Source("parliament", "CC BY 4.0", marked, {"es": "calzada+PARLAMINT-ES-MC/ParlaMint-ES.TEI/*/*.xml"}),
    Source("drama", "CC0 1.0", marked, {"de": "dracor-org+gerdracor/tei/*.xml"}, 40_000),
    Source("drama", 'public domain, "freely available"', marked, {"es": "dracor-org+spandracor/tei/*.xml"}, 40_000),
    Source("novels", "public domain; edition CC BY 4.0", marked, "COST-ELTeC+ELTeC-{1}/level1/*.xml", 70_000),
    Source("bible", "public domain", paragraphs, {
        "de": "scrollmapper+bible_databases/formats/txt/GerAlbrecht.txt",
        "fr": "scrollmapper+bible_databases/formats/txt/FreSynodale1921.txt",
        "es": "scrollmapper+bible_databases/formats/txt/SpaRV1865.txt"}, 8_000),
    Source("law", PUBLIC, paragraphs, {"de": "bundestag+gesetze/**/*.md"}, 40_000),
    Source("law", "Licence Ouverte 2.0", paragraphs, {"fr": "legalize-dev+legalize-fr/fr/*.md"}, 40_000),
    Source("law", "Licencia de Datos Abiertos (UY)", paragraphs, {"es": "legalize-dev+legalize-uy/uy/**/*.md"}, 40_000),
    Source("government_guides", "MIT; Licence Ouverte 2.0; Open Government Licence - Canada", paragraphs, {
        "fr": "cds-snc+digital-canada-ca/content/fr/**/*.md etalab+guides.etalab.gouv.fr/**/*.md "
              "canada-ca+digital-playbook-guide-numerique/**/fr/*.md"}),
    Source("government_forms", "CC0 1.0; MIT; GPL 3; Apache 2.0", keyed,
           "18F+identity-idp/config/locales/{0}.yml cds-snc+platform-forms-client/**/{0}/*.json "
           "DTS-STN+eligibility-estimator/i18n/*/{0}.ts codeforamerica+vita-min/config/locales/{0}.yml "
           "IRS-Public+direct-file/**/locales/{0}.yaml bloom-housing+bloom/shared-helpers/src/locales/{0}.json"),
    Source("government_aid", "AGPL 3", keyed, {"fr": "betagouv+aides-jeunes/data/benefits/**/*.yml"}),
    Source("textbooks", "CC BY 4.0", marked, {"es": "openstax+osbooks-fisica-universitaria-bundle/modules/*/*.cnxml"}),
    Source("open_source_guides", "CC BY 4.0", paragraphs, "github+opensource.guide/_articles/{0}/*.md"),
    Source("mozilla_web", "MPL 2.0", keyed, "mozilla-l10n+www-l10n/{0}/**/*.ftl mozilla-l10n+www-l10n/{0}-*/**/*.ftl"),
    Source("mediawiki", GPL, keyed, "mediawiki/**/i18n/**/{0}.json", 12_000),
    Source("desktop", "GPL, LGPL (packages)", catalogue,
           "evolution-common/**/{0}/LC_MESSAGES/*.mo gnucash-common/**/{0}/LC_MESSAGES/*.mo "
           "gramps/**/{0}/LC_MESSAGES/*.mo digikam-data/**/{0}/LC_MESSAGES/*.mo wordpress-l10n/**/*{0}_??.mo", 15_000),
    Source("debian_descriptions", GPL, unpacked, "descriptions/Translation-{0}.bz2", 20_000),
    Source("gnome_help", "CC BY-SA 3.0", marked, "gnome-user-docs/**/{0}/**/*.page", 10_000),
    Source("gimp_help", "GFDL 1.2 or later", marked, "gimp-help-{0}/**/help/{0}/*.html", 12_000),
    Source("libreoffice_help", "MPL 2.0", marked, "libreoffice-help-{0}/**/{0}/**/*.html", 12_000),
    Source("debian_handbook", f"{GPL} or CC BY-SA 3.0", marked, "debian-handbook/**/{0}-*/*.html", 6_000),
    Source("debian_installation", "GPL 2", marked, "installation-guide-*/**/{0}/*.html", 3_000),
    Source("python_docs", "CC0 1.0", po, {"es": "python+python-docs-es/**/*.po"}, 10_000),
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--sources", type=Path, required=True, help="the folder of clones and packages")
    parser.add_argument("--output", type=Path, required=True, help="the folder to write; one of each language below it")
    parser.add_argument("--held-out", type=Path, help="a folder of *.jsonl whose strings are left out")
    parser.add_argument("--languages", nargs="+", choices=LANGUAGES, default=list(LANGUAGES))
    options = parser.parse_args(argv)
    held_out = frozenset(folded(text) for text in strings(options.held_out)) if options.held_out else frozenset()
    for language in options.languages:
        seen, table = (
            set(held_out),
            ["| file (.jsonl.gz) | rows | licence | files | a line |", "|---|---:|---|---|---|"],
        )
        for source in SOURCES:
            places = source.places.get(language, "") if isinstance(source.places, dict) else source.places
            patterns = places.format(*LANGUAGES[language]).split()
            files = [file for pattern in patterns for file in sorted(options.sources.glob(pattern)) if file.is_file()]
            texts = gathered(options.sources, files, source, language, seen)
            if patterns and not texts:
                print(f"{language}: nothing of {source.name} ({' '.join(patterns)})")
            long = [text for text in texts if text.count(" ") >= PASSAGE - 1]
            short = [text for text in texts if text.count(" ") < PASSAGE - 1]
            for name, part in ((source.name, short), (source.name + PASSAGES, long)):
                if part:
                    write(options.output / language / f"{name}.jsonl.gz", part)
                    example = part[len(part) // 2]
                    table.append(f"| {name} | {len(part):,} | {source.licence} | {' '.join(patterns)} | {example} |")
                    print(language, name, len(part), flush=True)
        (options.output / language / "README.md").write_text("\n".join(table) + "\n", encoding="utf-8")


def strings(folder: Path) -> Iterator[str]:
    """The strings of the rows in a folder's JSON-lines files."""
    for file in sorted(folder.glob("*.jsonl")):
        for row in read_rows(file):
            yield from (value for value in row.values() if isinstance(value, str))


def write(file: Path, texts: Sequence[str]) -> None:
    """Write packed JSON lines; a reader never sees half a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f"{file.name}.part")
    with gzip.open(part, "wt", encoding="utf-8") as rows:
        rows.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
    part.replace(file)


def gathered(root: Path, files: Sequence[Path], source: Source, language: str, seen: set[str]) -> list[str]:
    """Texts of a source, each once; of more than ``source.most``, those with the lowest hash."""
    found: list[str] = []
    for file in sorted(files, key=lambda file: uniform(str(file.relative_to(root)), "order")):
        if len(found) > 3 * source.most:
            break
        for paragraph in source.read(file.read_bytes()):
            paragraph = QUOTED.sub(r"\1", " ".join(paragraph.replace(" / ", " ").split()))
            for text in cut(paragraph):
                if is_clean(text, language) and (key := folded(text)) not in seen:
                    seen.add(key)
                    found.append(text)
    if len(found) > source.most:
        limit = sorted(uniform(text, "most") for text in found)[source.most]
        found = [text for text in found if uniform(text, "most") < limit]
    return found


def cut(paragraph: str) -> Iterator[str]:
    """A paragraph as it is, its sentences, or runs of them of 40 words and more: half of the long ones each."""
    if paragraph.count(" ") < WHOLE:
        yield paragraph
        return
    sentences: list[str] = []
    for part in SENTENCE_END.split(paragraph):
        if sentences and ABBREVIATION.search(sentences[-1]):
            sentences[-1] += f" {part}"
        else:
            sentences.append(part)
    chance = uniform(paragraph, "passage")
    if paragraph.count(" ") < PASSAGE - 1 or chance < 0.5:
        yield from sentences
        return
    run: list[str] = []
    for sentence in sentences:
        run.append(sentence)
        if " ".join(run).count(" ") >= PASSAGE + 100 * (chance - 0.5):
            yield " ".join(run)
            run = []
    if run:
        yield " ".join(run)


def is_clean(text: str, language: str) -> bool:
    """Whether a text is 3 to 128 words of the language, without markup and mostly letters."""
    words = text.count(" ") + 1
    if not SHORTEST <= words <= LONGEST_PASSAGE or UNCLEAN.search(text) or text[0] in "(,;:.)/":
        return False
    letters, capitals = sum(map(str.isalpha, text)), sum(map(str.isupper, text))
    if letters < 0.7 * (len(text) - words + 1) or capitals > 0.4 * len(text) or len(text) > 9 * words + 30:
        return False
    found = [word.lower() for word in WORDS.findall(text)]
    counts = {name: sum(word in common for word in found) for name, common in COMMON_WORDS.items()}
    own = counts.pop(language)
    return own >= max(counts.values()) and (own > 0 or words < 8)


def folded(text: str) -> str:
    """Letters and digits in lower case, everything else one space."""
    return " ".join(re.findall(r"[^\W_]+", unicodedata.normalize("NFKC", text).lower()))


if __name__ == "__main__":
    main()

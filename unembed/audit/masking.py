"""Masking of texts that are shown to others: common English words stay, all others become their shape.

    masked("Ada's card is 4111 1111", (Span(0, 3, "PERSON"),))      # "[PERSON]'x card is 0000 0000"

What stays is on a list, written in lower case or at the beginning of a sentence: no other name is shown, however it is
written. Letters of other words become x or X and digits 0; punctuation and single spaces stay. An entity is replaced by
its label, since the length of a name reveals much about it. What stays, and the lengths of the other words, still
disclose what a text is about; leave out rows where even that is too much.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from unembed.audit.exposure import begins_sentence
from unembed.core.examples import Span
from unembed.metrics.stop_words import STOP_WORDS

OTHER = "•"
# A word between spaces, with or without punctuation around it: parts of addresses, user names and links are none.
_WORD = re.compile(
    r"(?<![^\s-])[\"'(\u201c\u2018]*"
    r"(?P<word>[^\W\d_]+(?:['\u2019][^\W\d_]+)?)"
    r"(?=[.,;:!?)\"'\u201d\u2019\u2026]*(?:[\s-]|$))"
)
# Words of many kinds of English text. None is usual as a name, a place or a number, or tells of health, belief,
# politics, origin or crime.
_COMMON = """
    ability able absolutely access according account accurate act action active actual actually add added additional
    address advantage advice affect afraid age ago agree agreed ahead air allow allowed alone amazing amount angry
    animal animals answer answers anymore anyway anywhere approach area areas arm article ask asked asking associated
    assume ate attention available average avoid aware away baby back bad bag base based basic basically beautiful
    became become bed began begin beginning behavior believe best bet better big bigger biggest birthday bit bite
    block blue board body book books boring born bottom bought box boy boys brand break bring broke broken brother
    brought build building built bus business busy buy call called calling calls came car card care career cars case
    cash cat catch cats caught cause caused cell center certain certainly change changed changes changing channel
    character chat cheap check child children choice choices choose city class classic clean clear clearly close
    closed closer coffee cold color colors combination come comes coming comment comments common company compared
    competition complete completed completely computer confused consider considered considering contact content
    context continue control cool copy correct cost costs count country couple course cover covered cream create
    created creating creative credit curious current currently cut cute damage dance dangerous dark data date daughter
    day days deal decide decided decision deep definitely degree depends designed despite details difference different
    difficult dinner direct directly dirty discuss discussion dog dogs door double doubt draw dream drive driving drop
    dropped dry earlier early easier easily easy eat eating effect effort empty end ended energy enjoy enjoyed enough
    entire especially etc evening event eventually everywhere evidence exactly exam example excellent excited exciting
    exists expect expected expensive experience explain extra extremely eye eyes face fact facts fair fairly fake
    familiar family famous fantastic fast faster father favorite feel feeling feels feet felt fight figure filled
    final finally find finding fine finish finished fire first fix fixed flat focus follow followed following food
    foot football forced forever forget forgot form forward found free friend friends front full fully fun funny
    further future game games garden gas gave general generally get gets getting girl girls give given gives giving
    glad glass go goal goes going gone good got great grew group grow growing grown guess guide guys half hand handle
    hands happen happened happening happens happy hard hat hate head hear heard hearing heavy held help helped helping
    helps high higher highly history hold holding hole holiday home honest hopefully hoping hot hour hours house huge
    human hungry idea ideas imagine immediately impact important impressive improve include includes including
    increase indeed information instead interest interested interesting internet involved issue issues job jobs join
    joke jump keep keeping keeps kept key kick kids kind kinds knew know knowing knowledge known knows lack language
    large larger last late later lead learn learned learning leave leaving left leg legs let level levels library life
    light like liked likely likes line lines list listen listening little live lived lives living local lonely long
    longer look looked looking looks lose losing loss lost lot lots loud love loved lovely loves low lower luck lucky
    lunch machine mad made main mainly make makes making managed matter mean meaning means meant measure meet meeting
    members men mention mentioned message met mind minute minutes miss missed missing mix modern moment money month
    months morning mostly mother mouth move moved movie movies moving multiple music name named names nearly necessary
    need needed needs nervous new news next nice night non normal nose note noticed number numbers odd offer office
    oil old older ones online open opinion option options order original overall paid paint painting paper parents
    part particular parts party pass passed pay people perfect person personal personally perspective phone physical
    pick picked picture pictures piece place places plan planning plans plant play played player playing plays please
    pleasure plenty plus point points poor popular position positive possible post posted potential power powerful
    practice prefer present pressure pretty prevent previous primary private probably problem problems process
    products program protect proud provide public pull purpose push put putting quality question questions quick
    quickly quit raise range rate raw reach reached read reading ready real reality reason reasons recent recently
    record red reference regarding regular related relationship release relevant remember report require required
    requirements research resources respect response rest result results return ride right risk risks role room rough
    round rule rules run running sad safe safety said save saw say saying says scared school screen search season
    second secret see seeing seem seemed seems seen self sell selling send sense series serious serve served service
    services set shape share shirt shoes shop short shot show showed showing shows side sign significant similar
    simple simply single sister sit site sitting size skills sleep slightly slow small smaller smart smell social soft
    sold solution somewhere son song songs sorry sort sound sounds source space speak speaking special specific
    specifically speed spend spent stand standard standing start started starting state stay staying step steps stick
    stop store stories story straight strange strategy strong stronger stuck student students study stuff style
    subject success successful super support sure surprise surprised system table take taken takes taking talk talked
    talking taste taught teach teacher team teams technology teeth tell tells tend term terms terrible test thank
    thanks thing things think thinking thinks thought thoughts throw tight time times tired today told tomorrow
    tonight took top topic total totally touch tough trade traditional traffic train travel tree tried trip trouble
    true truly trust try trying turn turned type understand understanding understood unfortunately unique upset use
    used useful using usually value version versus video videos view visit visiting voice wait waiting wake walk
    walked walking want wanted wants warm wash watch watched watching water way ways wear wearing weather website week
    weeks weird welcome went whole wide wife win wish woman women won wonder wonderful wondering word words work
    worked working works world worried worry worse worth write writing written wrong wrote year years yesterday
    younger
"""
COMMON = STOP_WORDS | frozenset(_COMMON.split())


def masked(text: str, spans: Sequence[Span] = ()) -> str:
    """``text`` with masked characters; ``spans`` become their labels; one that overlaps an earlier one is shortened."""
    shown = [_character(one) for one in text]
    for match in _WORD.finditer(text):
        if _is_common(match["word"], text[: match.start()], text[match.end("word") :]):
            shown[slice(*match.span("word"))] = match["word"]
    parts: list[str] = []
    position = 0
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        if span.end > position and span.start < len(text):
            parts += [*shown[position : max(position, span.start)], f"[{span.label}]"]
            position = span.end
    return " ".join("".join([*parts, *shown[position:]]).split())


def _is_common(word: str, before: str, after: str) -> bool:
    """Whether a word between two texts is on the list, and written as no name is, nor as an initial of one."""
    plain = word.lower().replace("\u2019", "'")
    if plain not in COMMON or (len(word) == 1 and (plain not in "ai" or after.startswith("."))):
        return False
    return word[0].islower() or word == "I" or word.startswith(("I'", "I\u2019")) or begins_sentence(before)


def _character(character: str) -> str:
    """The mask of a character by its Unicode category, so that every script is masked."""
    category = unicodedata.category(character)
    if category in ("Lu", "Lt"):
        return "X"
    if category[0] == "L":
        return "x"
    if category[0] == "N":
        return "0"
    if category[0] == "M":
        return ""  # a combining accent; its letter is already masked
    if category[0] == "Z" or character in "\t\n\r":
        return " "
    return character if character.isascii() and character.isprintable() else OTHER

"""English stop words, and their counts in texts.

    stop_words("I don't think so, Ada.")  ->  StopWords(stop=3, words=5): not "think" and "ada"

The list is our own: the closed classes of English words (articles, pronouns, prepositions, conjunctions, auxiliaries,
a few adverbs of degree, place and time, yes and oh), lower-cased, as ``metrics.tokens.words`` cuts them, so "don't"
is one word. Fragments in tokenized chat ("don t", "i ' m") are included. GEIA (section 4.2) has another list and
another count: ``geia_stop_words``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from unembed.metrics.tokens import words as words_of

LANGUAGE = "en"

_PLAIN = """
    a an the this that these those
    i me my mine myself we us our ours ourselves you your yours yourself yourselves
    he him his himself she her hers herself it its itself they them their theirs themselves one oneself
    who whom whose which what whatever whichever whoever
    someone somebody something anyone anybody anything everyone everybody everything nobody nothing none
    all any both each either every few less least many more most much neither no other others another several some such
    about above across after against along among around as at before behind below beneath beside besides between
    beyond by down during except for from in inside into near of off on onto out outside over past per since
    through throughout till to toward towards under until up upon via with within without
    and but or nor so yet if because although though unless whereas whether while than then
    am is are was were be been being do does did doing done have has had having
    can could may might must shall should will would ought cannot
    not also again already always almost else ever even far here how however just maybe never now often once only own
    perhaps quite rather really same sometimes soon still there therefore thus together too very well when whenever
    where wherever why
    oh yes yeah ok okay
"""
_CONTRACTED = """
    i'm i've i'd i'll you're you've you'd you'll he's he'd he'll she's she'd she'll it's it'd it'll
    we're we've we'd we'll they're they've they'd they'll that's that'd that'll there's here's who's what's where's
    when's why's how's let's
    isn't aren't wasn't weren't don't doesn't didn't haven't hasn't hadn't can't couldn't won't wouldn't shan't
    shouldn't mightn't mustn't needn't ain't
"""
# Fragments of words that were split at apostrophes, or written without.
_BROKEN = "s t m d re ve ll don didn doesn isn wasn aren couldn wouldn dont im ive cant thats"

STOP_WORDS: frozenset[str] = frozenset(f"{_PLAIN} {_CONTRACTED} {_BROKEN}".split())

# NLTK's English list, and what the script of GEIA's authors adds to it.
_NLTK = """
    i me my myself we our ours ourselves you you're you've you'll you'd your yours yourself yourselves he him his
    himself she she's her hers herself it it's its itself they them their theirs themselves what which who whom this
    that that'll these those am is are was were be been being have has had having do does did doing a an the and but if
    or because as until while of at by for with about against between into through during before after above below to
    from up down in out on off over under again further then once here there when where why how all any both each few
    more most other some such no nor not only own same so than too very s t can will just don don't should should've
    now d ll m o re ve y ain aren aren't couldn couldn't didn didn't doesn doesn't hadn hadn't hasn hasn't haven haven't
    isn isn't ma mightn mightn't mustn mustn't needn needn't shan shan't shouldn shouldn't wasn wasn't weren weren't
    won won't wouldn wouldn't
"""
_GEIA: frozenset[str] = frozenset(f"{_NLTK} ! , . ? -s -ly".split())


class StopWords(NamedTuple):
    """Counts of stop words and of all words.

    Rates are quotients of sums rather than means over texts, as in GEIA; a few very long predictions can dominate them
    (section 4.3.2).
    """

    stop: int
    words: int


def stop_words(text: str) -> StopWords:
    """The counts of our own list."""
    words = words_of(text)
    return StopWords(sum(word in STOP_WORDS for word in words), len(words))


def geia_stop_words(text: str) -> StopWords:
    """The counts of the script of GEIA's authors: "i love my two dogs and my cat ." -> StopWords(stop=5, words=9).

    Words are cut at white space, case is kept, and all but the distinct words outside the list count as stop words. So
    a repeated word is a stop word from its second occurrence on.
    """
    found = text.split()
    return StopWords(len(found) - len(set(found) - _GEIA), len(found))


def content_words(text: Iterable[str]) -> frozenset[str]:
    """The distinct words that are not stop words; punctuation ("?!") does not count as words."""
    return frozenset(word for word in text if word not in STOP_WORDS and any(map(str.isalnum, word)))

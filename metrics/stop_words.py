"""English stop words, and their counts in texts.

    stop_words([words("I don't think so, Ada.")])  ->  StopWords(stop=3, words=5): not "think" and "ada"

The list is our own: the closed classes of English words (articles, pronouns, prepositions, conjunctions, auxiliaries,
a few adverbs of degree, place and time, yes and oh), lower-cased, as ``metrics.tokens.words`` cuts them, so "don't"
is one word. Fragments in tokenized chat ("don t", "i ' m") are included. GEIA (section 4.2) uses NLTK's list, which
differs in some words and has to be downloaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

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


class StopWords(NamedTuple):
    """Counts of stop words and of all words."""

    stop: int
    words: int

    @property
    def rate(self) -> float | None:
        """Share of stop words, 0-100; None without words."""
        return 100 * self.stop / self.words if self.words else None


def stop_words(texts: Iterable[Sequence[str]]) -> StopWords:
    """Counts of stop words and words, summed over texts that are given as lists of ``words``.

    Sums rather than means over texts, as in GEIA; a few very long predictions can dominate the rate (section 4.3.2).
    """
    stop = total = 0
    for text in texts:
        stop += sum(word in STOP_WORDS for word in text)
        total += len(text)
    return StopWords(stop, total)


def content_words(text: Iterable[str]) -> frozenset[str]:
    """The distinct words that are not stop words; punctuation ("?!") does not count as words."""
    return frozenset(word for word in text if word not in STOP_WORDS and any(map(str.isalnum, word)))

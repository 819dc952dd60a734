"""Speeds and speed-ups of paired runs, with bootstrap intervals over prompts.

A run's figures are {prompt: (tokens, seconds)}, all repeats of the prompt added up. A speed is tokens over seconds of all
prompts together. A resample draws prompts with replacement within each domain, the same draw for everything that is compared,
so that what makes a prompt fast or slow for all cancels out.
"""
import math
import random


def geomean(values):
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values))


def speed(figures, prompts, weights=None):
    """Tokens per second over these prompts; weights: how often each is counted (default once)."""
    tokens = seconds = 0.0
    for p in prompts:
        w = 1 if weights is None else weights[p]
        tokens += w * figures[p][0]
        seconds += w * figures[p][1]
    return tokens / seconds


def draws(domains, n, seed=1):
    """n resamples, each {prompt: how often}; domains: {domain: [prompt...]}."""
    rng = random.Random(seed)
    for _ in range(n):
        weights = {p: 0 for prompts in domains.values() for p in prompts}
        for prompts in domains.values():
            for p in rng.choices(prompts, k=len(prompts)):
                weights[p] += 1
        yield weights


def interval(samples, level=0.95):
    """The middle `level` of the samples, by linear interpolation."""
    s = sorted(samples)

    def at(q):
        x = q * (len(s) - 1)
        i = min(int(x), len(s) - 2) if len(s) > 1 else 0
        return s[i] + (x - i) * (s[min(i + 1, len(s) - 1)] - s[i])
    return at((1 - level) / 2), at((1 + level) / 2)


class Ratios:
    """Speed-ups over several cells (a cell: {name: figures}, over the same prompts), and their intervals."""

    def __init__(self, domains, n=2000, seed=1):
        self.domains = domains
        self.weights = [None] + list(draws(domains, n, seed))

    def _speeds(self, figures):
        """Per resample (the first is the data itself): {domain: speed} and "all"."""
        every = [p for prompts in self.domains.values() for p in prompts]
        made = []
        for w in self.weights:
            row = {d: speed(figures, prompts, w) for d, prompts in self.domains.items()}
            row["all"] = speed(figures, every, w)
            made.append(row)
        return made

    def prepare(self, figures):
        """What `ratio` takes; made once for each run."""
        return self._speeds(figures)

    def ratio(self, pairs):
        """pairs: [(prepared, prepared)...], one a cell. {domain, "all", "geomean": (value, low, high)}: each the geometric
        mean over the cells; "geomean" is over domains too, "all" counts all prompts together. The bounds are NaN where every
        resample is the same, since no domain has more than one prompt."""
        made = {}
        for key in [*self.domains, "all", "geomean"]:
            keys = list(self.domains) if key == "geomean" else [key]
            samples = [geomean(a[i][k] / b[i][k] for a, b in pairs for k in keys) for i in range(len(self.weights))]
            drawn = self.domains.values() if key in ("all", "geomean") else [self.domains[key]]
            bounds = interval(samples[1:]) if max(map(len, drawn)) > 1 else (math.nan, math.nan)
            made[key] = (samples[0], *bounds)
        return made

"""What scenes of the generated world are called in words, with paraphrases; and sentences around names of classes."""

from __future__ import annotations

from collections.abc import Sequence

from equiav.data.synthetic import Scene, SceneObject

# Names of hues from the first to the last, evenly; of sizes from small to large; several words for one thing each.
COLOURS = (("red",), ("orange",), ("yellow",), ("green",), ("turquoise", "cyan"), ("blue",), ("violet", "purple"))
SIZES = (("small", "little", "tiny"), ("medium", "mid-sized", "middling"), ("large", "big", "huge"))
NOUNS = {
    "disc": ("disc", "circle"),
    "square": ("square", "box"),
    "triangle": ("triangle",),
    "ring": ("ring", "hoop"),
    "cross": ("cross", "plus"),
    "flower": ("flower", "blossom"),
    "bar": ("bar", "rod"),
    "crescent": ("crescent", "moon"),
}
# What is seen, then what is heard: {seen} is a list of objects, {heard} those that sound, {verb} fits their number.
SENTENCES = (
    "{seen}; {heard} {sounds}",
    "{heard} {sounds} in a scene with {seen}",
    "there is {seen} and you hear {heard}",
    "{seen}, the sound comes from {heard}",
    "a picture of {seen}, {heard} can be heard",
)
SILENT = ("{seen}", "a scene with {seen}", "there is {seen}", "a picture of {seen}", "you see {seen}")
TEMPLATES = ("{}", "a photo of {}", "the sound of {}", "{} that can be heard", "this is {}")
PARAPHRASES = 10  # of a scene; further numbers begin again


def caption(scene: Scene, paraphrase: int = 0, *, heard: bool = True) -> str:
    """A scene in words: size, colour and kind of every object, and which of them sound.

    `paraphrase` chooses sentence, synonyms and the order of the objects; the first is the plainest. Without `heard`
    only what is seen is told.
    """
    number = paraphrase % PARAPHRASES
    objects = list(scene.objects)
    if number % 2:
        objects.reverse()
    seen = listed([f"a {described(item, number)}" for item in objects])
    if not heard:
        return SILENT[number % len(SILENT)].format(seen=seen)
    sounding = [item for item in objects if item.sounding]
    names = [noun(item, number) for item in objects]
    short = [_told_apart(item, names, number) for item in sounding]
    verb = "sounds" if len(sounding) == 1 else "sound"
    return SENTENCES[number % len(SENTENCES)].format(seen=seen, heard=listed(short), sounds=verb)


def described(item: SceneObject, paraphrase: int = 0) -> str:
    """Size, colour and kind of an object: small red ring."""
    return f"{_word(SIZES, item.relative_size, paraphrase)} {colour(item, paraphrase)} {noun(item, paraphrase)}"


def colour(item: SceneObject, paraphrase: int = 0) -> str:
    """The name of an object's hue."""
    return _word(COLOURS, item.relative_hue, paraphrase)


def noun(item: SceneObject, paraphrase: int = 0) -> str:
    """The name of an object's kind."""
    words = NOUNS[item.kind]
    return words[paraphrase // len(SENTENCES) % len(words)]


def listed(parts: Sequence[str]) -> str:
    """Parts as a list in a sentence: a, b and c."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def fill(template: str, name: str) -> str:
    """A sentence around the name of a class, whose underscores are spaces."""
    return template.replace("{}", name.replace("_", " "))


def _told_apart(item: SceneObject, names: Sequence[str], paraphrase: int) -> str:
    own = noun(item, paraphrase)
    return f"the {own}" if names.count(own) == 1 else f"the {colour(item, paraphrase)} {own}"


def _word(words: Sequence[Sequence[str]], share: float, paraphrase: int) -> str:
    of = words[min(int(share * len(words)), len(words) - 1)]
    return of[paraphrase % len(of)]

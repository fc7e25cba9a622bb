"""What a bridge from an image-text model is worth beside a text branch that was trained along, on the generated world.

    python benchmarks/bridge.py WITH_TEXT WITHOUT_TEXT [WITH_TEXT WITHOUT_TEXT ...]   # writes results/bridge.json

The runs, in pairs of one seed, are the rows "EquiAV with text" and "EquiAV without text" of `equiav ablate text`, or of
a copy of that table with other seeds; the results file has seeds 31 to 33, which took no part in any choice. For
each pair a small CLIP of the transformers library is trained on frames and descriptions of the training scenes and
saved as the Hub would serve it. A bridge leads from it to the model without text; it is fitted on frames of scenes that
stand for the user's own videos and whose descriptions it never sees. Descriptions of other, unseen scenes then look for
their sounds and frames: through the branch that was trained along, through the bridge, and through a bridge whose pairs
were shuffled. Two more bridges show what the collection and the model do: one fitted on the searched scenes themselves,
as in an index of yours, and one that leads to the model with text, whose text branch it leaves alone.

Bounds show where the rest is lost: each scene's own frame in the place of its text, embedded by our model, and by the
small CLIP and the map; and the text looking for frames in the small CLIP's own space.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from numpy.typing import NDArray

from equiav.bridge import TransformersImageText, fit_bridge
from equiav.build import build_dataset
from equiav.evaluation import embed_dataset
from equiav.inference import Embedder, LoadedModel, load_model
from equiav.io import provenance, write_json
from equiav.media import square, stacked
from equiav.randomness import generator
from equiav.search import Entry, Index
from equiav.text import CaptionedWorld

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "bridge.json"
START, END = "<|startoftext|>", "<|endoftext|>"
Vectors = NDArray[np.float32]


def tokenizer(texts: Sequence[str]) -> transformers.CLIPTokenizer:
    """CLIP's, with merges that build the words of these texts letter by letter."""
    letters = sorted({letter for text in texts for letter in text if letter != " "})
    merges: dict[tuple[str, str], None] = {}
    for word in sorted({word.strip(";,.") for text in texts for word in text.split()}):
        parts = [*word[:-1], f"{word[-1]}</w>"]
        while len(parts) > 1:
            merges[parts[0], parts[1]] = None
            parts = [parts[0] + parts[1], *parts[2:]]
    tokens = [*letters, *(f"{x}</w>" for x in letters), *("".join(pair) for pair in merges), START, END]
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    return transformers.CLIPTokenizer(vocab=vocabulary, merges=list(merges))


def frame(world: CaptionedWorld, index: int, number: int) -> NDArray[np.uint8]:
    """A frame of a scene, as an image."""
    found: NDArray[np.uint8] = world.media(index)[1][number].permute(1, 2, 0).numpy()
    return found


def small_clip(world: CaptionedWorld, folder: Path, *, steps: int, batch: int, seed: int) -> TransformersImageText:
    """A CLIP trained on frames and paraphrases of the scenes of a training split, saved and opened again."""
    words = tokenizer([str(world.text(i, k)) for i in range(min(len(world), 2000)) for k in range(world.frames)])
    torch.manual_seed(seed)
    size = {"hidden_size": 96, "intermediate_size": 384, "num_hidden_layers": 3, "num_attention_heads": 4}
    ends = {"bos_token_id": words.bos_token_id, "eos_token_id": words.eos_token_id, "pad_token_id": words.pad_token_id}
    model = transformers.CLIPModel(
        transformers.CLIPConfig(
            text_config={**size, **ends, "vocab_size": len(words), "max_position_embeddings": 48},
            vision_config={**size, "image_size": 48, "patch_size": 8},
            projection_dim=64,
        )
    )
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    transformers.CLIPImageProcessor(size={"shortest_edge": 48}, crop_size=48).save_pretrained(folder)
    found = TransformersImageText(str(folder))
    optimizer = torch.optim.AdamW(found.model.parameters(), lr=1e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=steps, pct_start=0.1)
    found.model.train()
    for step in range(steps):
        draw = generator(seed, step, "clip")
        rows = torch.randint(len(world), (batch,), generator=draw).tolist()
        frames = torch.randint(world.frames, (batch,), generator=draw).tolist()
        pictures = torch.cat([square(stacked((frame(world, i, k),)), 48) for i, k in zip(rows, frames, strict=True)])
        told = words([str(world.text(i, k)) for i, k in zip(rows, frames, strict=True)], padding="max_length",
                     truncation=True, max_length=48, return_tensors="pt")  # fmt: skip
        pixels = found.inputs.finish(found.inputs.prepare(pictures))
        loss = found.model(**told, pixel_values=pixels, return_loss=True).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == steps - 1:
            print(f"  small CLIP: step {step + 1} of {steps}, loss {loss.item():.3f}", flush=True)
    found.model.save_pretrained(folder)
    return TransformersImageText(str(folder))


def recalls(queries: Vectors, searched: dict[str, Vectors], kind: str = "text") -> dict[str, float]:
    """R@10 in per cent of queries among sounds and among frames; row i of either belongs to query i."""
    found = {}
    for m, vectors in searched.items():
        scores = queries @ vectors.T
        ranks = 1 + (scores > np.diagonal(scores)[:, None]).sum(axis=1)
        found[f"{kind}_to_{m}"] = 100 * float((ranks <= 10).mean())
    return found


def embedded(model: LoadedModel, world: CaptionedWorld) -> dict[str, Vectors]:
    """Unit vectors of sounds and frames."""
    found = embed_dataset(model, world)
    return {m: F.normalize(found[m], dim=1).numpy() for m in ("audio", "visual")}


def compared(joint: Path, silent: Path, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """The ways to search by text, on the scenes of one pair of runs."""
    with_text, without = load_model(joint), load_model(silent)
    recipe = with_text.config
    train, test = (build_dataset(recipe, split) for split in ("train", "test"))
    assert isinstance(train, CaptionedWorld)
    assert isinstance(test, CaptionedWorld)
    # The user's own videos: scenes that neither the models nor the small CLIP were trained on.
    own = CaptionedWorld(test.world, test.start + len(test), args.own, read=test.read)
    clip = small_clip(train, folder / "clip", steps=args.steps, batch=64, seed=recipe.seed)
    middle = own.frames // 2
    said = [str(test.text(i)) for i in range(len(test))]
    frames = clip.images([frame(test, i, middle) for i in range(len(test))])
    searched, searched_with_text = embedded(without, test), embedded(with_text, test)
    ours = embedded(without, own)["visual"]
    plain = [str(train.text(i)) for i in range(300)]  # for the mean of its texts: sentences that it can read
    result: dict[str, Any] = {
        "seed": recipe.seed,
        "clips": len(test),
        "chance": 100 * 10 / len(test),
        "trained along": recalls(np.asarray(Embedder(with_text).text(said)), searched_with_text),
        "small CLIP itself": recalls(clip.texts(said), {"visual": frames}),
        "frame": recalls(searched["visual"], {"audio": searched["audio"]}, "frame"),
    }
    for name, model, world, vectors, among in (
        ("bridge", without, own, ours, searched),
        ("shuffled", without, own, np.random.default_rng(recipe.seed).permutation(ours), searched),
        ("searched scenes", without, test, searched["visual"], searched),
        ("model with text", with_text, own, embedded(with_text, own)["visual"], searched_with_text),
    ):
        index = Index.create(folder / name, model)
        index.add(
            [Entry(world.clip(i), {"visual": y}, frame(world, i, middle)) for i, y in enumerate(vectors)],
            made_by=model.digest,
        )
        bridge = fit_bridge(index, clip, texts=plain)
        index.close()
        facts = {"gap": bridge.facts.gap, "ridge": bridge.facts.ridge, "pairs": bridge.facts.pairs}
        mapped = (torch.from_numpy(frames) - bridge.image_mean) @ bridge.map + bridge.our_mean
        bound = recalls(F.normalize(mapped, dim=1).numpy(), among, "frame")
        result[name] = {**recalls(bridge.text(said), among), **bound, **facts}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--steps", type=int, default=1500, help="of the small CLIP, with 64 scenes each")
    parser.add_argument("--own", type=int, default=2000, help="scenes that the bridge is fitted on")
    args = parser.parse_args()
    if len(args.runs) % 2:
        sys.exit("give pairs of runs: one with text, one without")
    found = []
    for joint, silent in list(pairwise(args.runs))[::2]:
        with tempfile.TemporaryDirectory() as folder:
            found.append(compared(joint, silent, Path(folder), args))
        print(found[-1], flush=True)
    ways = ("text_to_audio", "text_to_visual")
    mean = {
        name: {way: statistics.fmean(each[name][way] for each in found) for way in of if "_to_" in way}
        for name, of in found[0].items()
        if isinstance(of, dict)
    }
    share = {way: mean["bridge"][way] / mean["trained along"][way] for way in ways}
    settings = {"steps": args.steps, "own": args.own}
    write_json(
        RESULTS, {"provenance": provenance(), "settings": settings, "seeds": found, "mean": mean, "share": share}
    )
    print(f"mean {mean}\nshare of what the branch reaches {share}\nWritten: {RESULTS}")


if __name__ == "__main__":
    main()

"""Made tests/frozen/format1: a prepared folder, a pre-training and a fine-tuning run, and an index, all of format 1.

Only for the record: it was run once, with version 0.1.0, and what it wrote must open for ever. A later version would
write its own format.

    python -m tests.frozen.make_format1 FOLDER

An index remembers absolute paths, so it was run with FOLDER = /tmp/format1.
"""

import io
import os
import shutil
import signal
import sys
from pathlib import Path

from tests.frozen.api import cli, prepare_small
from tests.frozen.media import sweep, write
from tests.media.making import sine

LIST = """path,name,labels,split,group,fold,boxes,city
media/0.mkv,,bell,train,tower,1,"[[0.1, 0.2, 0.5, 0.75]]",Bonn
media/1.mkv,,dog,train,,2,,Bonn
media/2.mkv,,bell;dog,train,,1,,Ulm
media/3.mkv,,dog,train,,2,,Ulm
media/4.mkv,,bell,train,tower,1,,Bonn
media/5.mkv,the sixth,dog,validation,,2,,Ulm
media/6.mkv,,bell,validation,,1,,Bonn
media/7.mkv,,dog,test,,2,,Ulm
media/8.mkv,,bell,test,,,,Ulm
media/absent.mkv,,bell,test,,,,Ulm
"""
COMMON = """data: {kind: shards, path: prepared, statistics: data}
model:
  encoder: {size: null, width: 8, depth: 1, heads: 2, mlp_ratio: 2.0}
  predictor: {query_width: 8, heads: 2, head_width: 4}
  heads: {hidden: 8, inter: 8, intra: 8}
audio: {frames: 64, bins: 16, patch: 8}
visual: {size: 16, patch: 8}
bank: {size: 4}
seed: 5
"""
TRAIN = "train: {batch: 4, steps: 4, workers: 0, log_every: 1, evaluate_every: 2, checkpoint_every: 100}\n"
PRETRAIN = f"""{COMMON}objective: {{representations: 2, weights: {{intra_audio: 0.5}}}}
optim: {{rate: 0.01, warmup_steps: 1, clip: 1.0}}
{TRAIN}"""
FINETUNE = f"""{COMMON}classifier: {{mode: audiovisual}}
finetune: {{loss: bce, metric: mAP, mixup: 0.5, drop_path: 0.1, layer_decay: 0.75}}
optim: {{rate: 0.01, warmup_steps: 1}}
{TRAIN.replace("}", ", ema: 0.9}")}weights: pretrained
"""


class Stopping(io.StringIO):
    """Tells the run to save and stop once it has said how validation went at step 2."""

    def write(self, text):
        """Called with each line."""
        if text.startswith("validation at step 2"):
            os.kill(os.getpid(), signal.SIGTERM)
        return super().write(text)


def make(folder):
    """Writes everything into a new folder."""
    folder.mkdir()
    os.chdir(folder)
    for number in range(9):
        sound, size = sine(0.6, 16000, 200 + 60 * number, amplitude=0.02), (40 + 6 * number, 40)
        path = Path("media", f"{number}.mkv")
        write(path, seconds=0.6, fps=4 + number, size=size, sound=sound, codecs=("ffv1", "flac"))
    for name, text in (("list.csv", LIST), ("pretrain.yaml", PRETRAIN), ("finetune.yaml", FINETUNE)):
        Path(name).write_text(text)
    prepare_small("list.csv", "prepared", short_side=24, frames=3, shard_bytes=40_000)
    for kind, out in (("pretrain", "pretrained"), ("finetune", "finetuned")):
        cli(kind, f"{kind}.yaml", "--out", out, err=Stopping(), code=143)
    cli("index", "prepared", "library", "--model", "pretrained", "--list", "list.csv")
    write(Path("media", "long.mkv"), seconds=2.5, fps=5, sound=sweep(2.5, 16000), codecs=("ffv1", "flac"))
    cli("index", "media/long.mkv", "library", "--seconds", 0.6)
    cli("index", "library", "--remove-source", "media/3.mkv")
    shutil.rmtree("media")
    for leftover in [*Path().rglob("tensorboard"), *Path().rglob("*.lock"), *Path().rglob("*.tmp")]:
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


if __name__ == "__main__":
    make(Path(sys.argv[1]).absolute())

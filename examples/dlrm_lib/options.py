"""The command line of the example, and the data set that it asks for."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from dlrm_lib.arguments import count, output_file, positive, seed
from dlrm_lib.data import ClickData, load_criteo, load_flights, make_synthetic
from dlrm_lib.model import Optimizers
from dlrm_lib.training import Settings

LEARNING_RATES = {"adagrad": (0.05, 1e-3), "sgd": (300.0, 0.2)}  # embeddings, dense part
BATCH_SIZE = 512  # per rank, where neither the command line nor the config says


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line; ``argparse`` ends the process on an error."""
    parser = argparse.ArgumentParser(
        prog="dlrm.py",
        description="Train TorchRec's DLRM with its embedding exchange quantized as a config says.",
        epilog="Run it with: torchrun --standalone --nproc_per_node 2 examples/dlrm.py --config configs/demo.yaml --compare",
    )
    parser.add_argument("--config", metavar="YAML", help="the policy; without it everything moves as it is")
    parser.add_argument("--compare", action="store_true", help="train the FP32 wire too, from the same seed, and compare")
    parser.add_argument("--json", metavar="FILE", type=output_file, help="write all that is printed, and the losses, as JSON")

    data = parser.add_argument_group("data")
    which = data.add_mutually_exclusive_group()
    which.add_argument("--data", choices=("flights", "synthetic"), default="flights")
    which.add_argument("--criteo", metavar="FILE", help="the Criteo Kaggle train.txt")
    data.add_argument("--criteo-rows", type=count, default=100_000, help="rows of each hashed table (default %(default)s)")
    data.add_argument("--criteo-lines", type=count, default=1_000_000, help="lines to read (default %(default)s)")
    data.add_argument("--synthetic-samples", type=count, default=50_000, help="clicks to draw (default %(default)s)")

    training = parser.add_argument_group("training")
    training.add_argument("--seed", type=seed, default=0, help="of weights, order and synthetic clicks (default %(default)s)")
    training.add_argument("--epochs", type=count, default=1)
    training.add_argument("--batch-size", type=count, help=f"per rank (default: the config's, else {BATCH_SIZE})")
    training.add_argument("--dim", type=count, default=32, help="of every table, a multiple of 4 (default %(default)s)")
    training.add_argument("--optimizer", choices=sorted(LEARNING_RATES), default="adagrad")
    training.add_argument("--embedding-lr", type=positive, help="default: 0.05 for adagrad, 300 for sgd")
    training.add_argument("--dense-lr", type=positive, help="of Adam or SGD; default: 0.001 for adagrad, 0.2 for sgd")
    training.add_argument("--limit-batches", type=count, help="train and score at most so many batches")
    options = parser.parse_args(arguments)
    if options.compare and options.config is None:
        parser.error("--compare needs --config: without one there is no policy to compare the FP32 wire with")
    if options.dim % 4:
        parser.error(f"--dim must be a multiple of 4, which TorchRec's lookups need; got {options.dim}")
    return options


def load_data(options: argparse.Namespace) -> ClickData:
    """The data set that the options name.

    Raises:
        ExampleError: a file, a column or a package is missing or wrong.
    """
    if options.criteo is not None:
        return load_criteo(options.criteo, rows=options.criteo_rows, max_lines=options.criteo_lines)
    if options.data == "synthetic":
        return make_synthetic(options.synthetic_samples, options.seed)
    return load_flights()


def settings_of(options: argparse.Namespace, config_batch_size: int | None) -> Settings:
    """The settings that all arms of the run share."""
    embedding_lr, dense_lr = LEARNING_RATES[options.optimizer]
    return Settings(
        batch_size=options.batch_size or config_batch_size or BATCH_SIZE,
        epochs=options.epochs,
        seed=options.seed,
        dim=options.dim,
        optimizers=Optimizers(options.optimizer, options.embedding_lr or embedding_lr, options.dense_lr or dense_lr),
        limit_batches=options.limit_batches,
    )

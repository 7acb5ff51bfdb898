"""Tables as Parquet files: an IO manager as a user would write one, and its slices by name."""

from __future__ import annotations

import hashlib
from pathlib import Path

import dagster as dg
from pydantic import Field
from pyspark.sql import DataFrame

from kpipe_platform import SparkEngine, current_slice
from kpipe_platform.errors import ConfigError
from kpipe_platform.kafka.model.slices import Slice

SLICE = "slice"
"""Column, in a table that grows by slices, that says which slice a row came with."""

# Longest name of a folder is 255 bytes on the usual file systems, and Spark adds to it while it writes.
_LONGEST_NAME = 180


class ParquetTableIOManager(dg.ConfigurableIOManager):
    """Stores Spark DataFrames as Parquet files, a folder an asset.

    The output of a whole asset replaces the table. The output of a slice of Kafka offsets is added to it; when the
    slice is repeated, because a run died before its offsets were stored, it replaces what the first try left. So every
    record is in the table once.

    Args:
        base_dir: Folder of all tables.
        spark: The engine that reads and writes them; it must see the same folder.
    """

    spark: SparkEngine
    base_dir: str = Field(description="folder of all tables; made when it does not exist")

    def load_input(self, context: dg.InputContext) -> DataFrame:
        """The whole table.

        Raises:
            ConfigError: Nothing has been stored yet.
        """
        return self.table(context.asset_key)

    def handle_output(self, context: dg.OutputContext, obj: DataFrame) -> None:
        """Store a table, or the slice that is being stored."""
        slice_ = current_slice()
        path = self.path(context.asset_key)
        if slice_ is not None:
            path /= f"{SLICE}={slice_name(slice_)}"
        obj.write.mode("overwrite").parquet(str(path))
        if slice_ is None:
            context.add_output_metadata({"path": dg.MetadataValue.path(str(path))})

    def path(self, asset_key: dg.AssetKey) -> Path:
        """Folder of an asset's table."""
        return Path(self.base_dir).expanduser().absolute().joinpath(*asset_key.path)

    def exists(self, asset_key: dg.AssetKey) -> bool:
        """Whether anything of the table was stored."""
        path = self.path(asset_key)
        return (path / "_SUCCESS").exists() or any(path.glob(f"{SLICE}=*/_SUCCESS"))

    def table(self, asset_key: dg.AssetKey) -> DataFrame:
        """The whole table.

        Raises:
            ConfigError: Nothing has been stored yet.
        """
        path = self.path(asset_key)
        if not self.exists(asset_key):
            msg = f"there is no table of asset {asset_key.to_user_string()} in {path}"
            raise ConfigError(msg, fix=f"materialise {asset_key.to_user_string()} first", asset=asset_key.path)
        frame: DataFrame = self.spark.spark_session.read.parquet(str(path))
        return frame


def slice_name(slice_: Slice) -> str:
    """A name for what a slice stores: ``flights.enriched-0-0_flights.enriched-1-250``, topic, partition, start.

    The ends are left out. A slice that is repeated begins where the failed one began, because no offset moved, but may
    reach further, because records came meanwhile; it must overwrite the failed one all the same.
    """
    name = "_".join(f"{p.range.topic}-{p.range.partition}-{p.range.start}" for p in slice_.ranges)
    return name if len(name) <= _LONGEST_NAME else hashlib.sha256(name.encode()).hexdigest()

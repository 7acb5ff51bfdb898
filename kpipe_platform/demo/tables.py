"""Tables as Parquet files: an IO manager as a user would write one, with a folder for each slice."""

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
"""Name of the partition column that contains the slice of each row, in a table that is written slice by slice."""

# Common file systems limit a folder's name to 255 bytes, and Spark adds to the name while it writes.
_LONGEST_NAME = 180


class ParquetTableIOManager(dg.ConfigurableIOManager):
    """Stores Spark DataFrames as Parquet files, one folder per asset.

    The output of a whole asset replaces the table. The output of a slice of Kafka offsets is added to the table. If a
    run fails before its offsets are committed, the slice is repeated and replaces the output of the first attempt. So
    every record is in the table once.

    Args:
        base_dir: Folder of all tables.
        spark: The engine that reads and writes the tables. It must have access to the same folder.
    """

    spark: SparkEngine
    base_dir: str = Field(description="folder of all tables; created if it does not exist")

    def load_input(self, context: dg.InputContext) -> DataFrame:
        """Return the whole table of the upstream asset.

        Raises:
            ConfigError: The table does not exist yet.
        """
        return self.table(context.asset_key)

    def handle_output(self, context: dg.OutputContext, obj: DataFrame) -> None:
        """Store a table, or the current slice of it."""
        slice_ = current_slice()
        path = self.path(context.asset_key)
        if slice_ is not None:
            path /= f"{SLICE}={slice_name(slice_)}"
        obj.write.mode("overwrite").parquet(str(path))
        if slice_ is None:
            context.add_output_metadata({"dagster/uri": path.as_uri()})

    def path(self, asset_key: dg.AssetKey) -> Path:
        """Return the folder of an asset's table."""
        return Path(self.base_dir).expanduser().absolute().joinpath(*asset_key.path)

    def exists(self, asset_key: dg.AssetKey) -> bool:
        """Return whether the table, or a slice of it, was stored."""
        path = self.path(asset_key)
        return (path / "_SUCCESS").exists() or any(path.glob(f"{SLICE}=*/_SUCCESS"))

    def table(self, asset_key: dg.AssetKey) -> DataFrame:
        """Return the whole table of an asset.

        Raises:
            ConfigError: The table does not exist yet.
        """
        path = self.path(asset_key)
        if not self.exists(asset_key):
            msg = f"asset {asset_key.to_user_string()} has no table in {path}"
            raise ConfigError(msg, fix=f"materialize {asset_key.to_user_string()} first", asset=asset_key.path)
        frame: DataFrame = self.spark.spark_session.read.parquet(str(path))
        return frame


def slice_name(slice_: Slice) -> str:
    """Return a name for a slice's output from topics, partitions and start offsets.

    An example is ``flights.enriched-0-0_flights.enriched-1-250``. The name does not contain the end offsets. A repeated
    slice has the same start offsets as the failed one, because no offset was committed, but it may end later, because
    more records have arrived. It must overwrite the output of the failed slice in any case.
    """
    name = "_".join(f"{p.range.topic}-{p.range.partition}-{p.range.start}" for p in slice_.ranges)
    return name if len(name) <= _LONGEST_NAME else hashlib.sha256(name.encode()).hexdigest()

"""An IO manager that adds a chart of the whole table to the metadata of each materialization."""

# Without "from __future__ import annotations": Dagster reads the class of the annotation of a resource dependency.
import base64
import importlib.util
import io
from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg
from pyspark.sql import functions as F

from kpipe_platform import OffsetCommittingIOManager
from kpipe_platform.demo.tables import ParquetTableIOManager
from kpipe_platform.errors import EnvironmentSetupError


class ChartedIOManager(OffsetCommittingIOManager):
    """Stores slices of delays, commits their offsets, and draws the medians of the whole table as a bar chart.

    Args:
        inner: Stores the slices, and reads the table.
    """

    inner: dg.ResourceDependency[ParquetTableIOManager]

    def handle_output(self, context: dg.OutputContext, obj: Any) -> Iterator[Any]:  # type: ignore[override]
        """Store the rows, commit the offsets, then draw the chart.

        Raises:
            EnvironmentSetupError: matplotlib is not installed. Raised before anything is stored.
        """
        if importlib.util.find_spec("matplotlib") is None:
            msg = "the demo draws its chart with matplotlib, which is not installed"
            raise EnvironmentSetupError(msg, fix="pip install 'kpipe-platform[demo]'")
        yield from super().handle_output(context, obj)
        if not self.inner.exists(context.asset_key):
            return
        medians = (
            self.inner.table(context.asset_key)
            .groupBy(F.coalesce("airline", "carrier").alias("name"))
            .agg(F.median("arr_delay").alias("median"), F.count(F.lit(1)).alias("rows"))
            .where("median is not null")
            .orderBy("median", "name")
            .collect()
        )
        rows = sum(row["rows"] for row in medians)
        picture = bar_chart(
            [row["name"] for row in medians],
            [row["median"] for row in medians],
            title=f"Median arrival delay of {rows:,} flights, minutes",
        )
        text = base64.b64encode(picture).decode()
        context.add_output_metadata(
            {
                "kpipe/median_arrival_delay": dg.MetadataValue.md(
                    f"![Median arrival delay](data:image/png;base64,{text})"
                ),
                "dagster/row_count": dg.MetadataValue.int(rows),
                "dagster/uri": self.inner.path(context.asset_key).as_uri(),
            }
        )


def bar_chart(names: Sequence[str], values: Sequence[float], *, title: str) -> bytes:
    """Draw horizontal bars, and return the chart as a PNG.

    Args:
        names: A label for each bar, from bottom to top.
        values: Lengths of the bars.
        title: Title above the chart.
    """
    # Unlike pyplot, Figure has no global state and needs no window system.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.35 * len(names) + 1), layout="constrained")
    axes = figure.add_subplot()
    bars = axes.barh(list(names), list(values), color=["#c0392b" if value > 0 else "#2e86c1" for value in values])
    axes.bar_label(bars, fmt="%g", padding=3)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.margins(x=0.1)
    axes.set_title(title)
    axes.tick_params(left=False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()

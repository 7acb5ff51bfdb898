"""What ``workspace.yaml`` loads: the flights platform."""

import dagster as dg

from kpipe_platform.demo.assets import ALL
from kpipe_platform.demo.platform import resources

# A process for each step would cost three seconds a step and a Spark session of its own.
defs = dg.Definitions(assets=ALL, resources=resources(), executor=dg.in_process_executor)

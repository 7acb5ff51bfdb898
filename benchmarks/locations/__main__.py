"""``python -m benchmarks.locations MODULE ASSETS``: load a code location, and print its steps and what was found."""

from __future__ import annotations

import importlib
import json
import sys
import time
import warnings


def main() -> None:
    """Import, make the definitions, and load them as a code server does."""
    module, assets = sys.argv[1], int(sys.argv[2])
    began = time.perf_counter()
    # Imports are a step that is measured: they are not at the top.
    from dagster import BetaWarning
    from dagster._core.remote_representation.external_data import RepositorySnap

    warnings.simplefilter("ignore", BetaWarning)
    location = importlib.import_module(f"benchmarks.locations.{module}")
    imported = time.perf_counter()
    definitions = location.definitions(assets)
    made = time.perf_counter()
    repository = definitions.get_repository_def()
    repository.load_all_definitions()
    # What a code server sends to the web server and to the daemon.
    nodes = [node for node in RepositorySnap.from_def(repository).asset_nodes if node.partitions is not None]
    loaded = time.perf_counter()
    found = {
        "finished": time.time(),
        "steps": {"import": imported - began, "make": made - imported, "load": loaded - made},
        "topics": sorted(node.asset_key.to_user_string() for node in nodes if node.is_observable),
        "assets": sorted(node.asset_key.to_user_string() for node in nodes if node.is_materializable),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()

"""The steps of a slice: plan, run, read, stage and isolate, encode, write, commit, report. Independent of Dagster."""

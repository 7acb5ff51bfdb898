"""The way of a slice: plan, run, read, stage and isolate, encode, write, commit, report. It knows no Dagster."""

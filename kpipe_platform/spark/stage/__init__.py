"""What a stage is given and returns: forms, rules, map_records."""

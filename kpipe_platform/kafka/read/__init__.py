"""Read records with kpipe's own client, without joining a group or committing offsets."""

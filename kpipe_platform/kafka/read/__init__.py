"""Reading records by kpipe's own client: no group is joined, nothing is committed."""

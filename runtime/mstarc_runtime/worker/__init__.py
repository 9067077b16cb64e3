"""A worker: one rank. It resumes walk coroutines, batches what waits on the same op or region, and runs it turn by turn."""

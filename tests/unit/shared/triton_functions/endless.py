"""Is never imported to the end."""

import time

while True:
    time.sleep(1)

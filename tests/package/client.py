"""Sends requests to the VIP until the file `stop` exists: client.py VIP. Each request opens a new connection,
while a second thread sends requests over one connection that stays open. Prints how many of all requests were
answered, how many were not, and how many milliseconds the slowest took."""

import http.client
import os
import sys
import threading
import time

vip = sys.argv[1]


def ask(connection):
    connection.request("GET", "/")
    return connection.getresponse().read().startswith(b"hello")


def ask_over_new_connection():
    connection = http.client.HTTPConnection(vip, timeout=10)
    try:
        return ask(connection)
    finally:
        connection.close()


def count(what, pause):
    good = bad = slowest = 0
    while not os.path.exists("stop"):
        begun = time.monotonic()
        try:
            good, bad = (good + 1, bad) if what() else (good, bad + 1)
        except OSError as error:
            print(error, file=sys.stderr)
            bad += 1
        except http.client.HTTPException as error:
            print(error, file=sys.stderr)
            bad += 1
        slowest = max(slowest, time.monotonic() - begun)
        time.sleep(pause)
    counts.append((good, bad, slowest))


counts = []
kept = http.client.HTTPConnection(vip, timeout=10)
# If it breaks, it is not opened again.
kept.connect()
kept.auto_open = 0
thread = threading.Thread(target=count, args=(lambda: ask(kept), 0.005))
thread.start()
count(ask_over_new_connection, 0)
thread.join()
goods, bads, slowest = zip(*counts)
print(sum(goods), sum(bads), round(max(slowest) * 1000))

"""Requests to the VIP until the file `stop` exists: client.py VIP. One connection after the other, and beside
them one that stays. Prints how many requests were answered and how many were not, of both."""

import http.client
import os
import sys
import threading
import time

vip = sys.argv[1]


def ask(connection):
    connection.request("GET", "/")
    return connection.getresponse().read().startswith(b"hello")


def ask_anew():
    connection = http.client.HTTPConnection(vip, timeout=10)
    try:
        return ask(connection)
    finally:
        connection.close()


def count(what, pause):
    good = bad = 0
    while not os.path.exists("stop"):
        try:
            good, bad = (good + 1, bad) if what() else (good, bad + 1)
        except OSError as error:
            print(error, file=sys.stderr)
            bad += 1
        except http.client.HTTPException as error:
            print(error, file=sys.stderr)
            bad += 1
        time.sleep(pause)
    counts.append((good, bad))


counts = []
kept = http.client.HTTPConnection(vip, timeout=10)
# If it breaks, it is not opened again.
kept.connect()
kept.auto_open = 0
thread = threading.Thread(target=count, args=(lambda: ask(kept), 0.005))
thread.start()
count(ask_anew, 0)
thread.join()
print(sum(good for good, _ in counts), sum(bad for _, bad in counts))

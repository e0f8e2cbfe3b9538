#!/usr/bin/env python3
"""Sends every frame it is given back out of the port where it came in: client.py SOCKET"""
import socket, struct, sys

weir = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
weir.connect(sys.argv[1])
while datagram := weir.recv(65536):
    version, kind, name, zero, length = struct.unpack("!BBBBI", datagram[:8])
    port, frame = datagram[8:8 + name], datagram[8 + name:]
    if kind == 4:
        sys.exit(frame.decode())
    frame = frame[6:12] + frame[0:6] + frame[12:]
    weir.send(struct.pack("!BBBBI", 1, 2, len(port), 0, len(frame)) + port + frame)

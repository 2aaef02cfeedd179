"""Script that runs inside a sandbox: it forwards connections to the proxy and executes the program.

The sandbox has no network; the proxy is reached through a Unix socket in a mounted directory. The forwarding
process is a grandchild that is reparented, so the program cannot wait for it by mistake.

Arguments: the socket; the ports of the proxy and of host services, separated by commas; the program.
"""

import os
import socket
import sys
import threading
from contextlib import suppress


def copy_stream(source: socket.socket, target: socket.socket) -> None:
    """Copy bytes from one socket to the other until the end, then shut down the target's writing side."""
    with suppress(OSError):
        while chunk := source.recv(65536):
            target.sendall(chunk)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def serve(client: socket.socket, path: str, target: bytes) -> None:
    """Connect a client to the proxy, with a CONNECT request to `target` unless it is empty."""
    with client, socket.socket(socket.AF_UNIX) as proxy:
        try:
            proxy.connect(path)
            if target:
                proxy.sendall(b"CONNECT " + target + b" HTTP/1.1\r\nHost: " + target + b"\r\n\r\n")
                answer = b""
                while b"\r\n\r\n" not in answer and len(answer) < 65536 and (chunk := proxy.recv(1)):
                    answer += chunk
                if b" 200 " not in answer.partition(b"\r\n")[0]:
                    return
        except OSError:
            return
        downstream = threading.Thread(target=copy_stream, args=(proxy, client), daemon=True)
        downstream.start()
        copy_stream(client, proxy)
        downstream.join()


def accept(listener: socket.socket, path: str, target: bytes) -> None:
    """Accept clients forever, each served in a thread."""
    while True:
        client, _ = listener.accept()
        threading.Thread(target=serve, args=(client, path, target), daemon=True).start()


def main() -> None:
    """Listen, start the forwarding process, and execute the program in place of this one."""
    path, proxy_port, *host_ports = sys.argv[1], *sys.argv[2].split(",")
    program = sys.argv[3:]
    ports = [(int(proxy_port), b""), *((int(port), b"localhost:" + port.encode()) for port in host_ports)]
    listeners = [(socket.create_server(("127.0.0.1", port), backlog=64), target) for port, target in ports]
    child_pid = os.fork()
    if child_pid == 0:
        if os.fork() == 0:
            os.setsid()
            devnull = os.open(os.devnull, os.O_RDWR)
            for standard in range(3):
                os.dup2(devnull, standard)
            for listener, target in listeners[1:]:
                threading.Thread(target=accept, args=(listener, path, target), daemon=True).start()
            accept(listeners[0][0], path, b"")
        os._exit(0)
    os.waitpid(child_pid, 0)
    for listener, _ in listeners:
        listener.close()
    try:
        os.execvp(program[0], program)  # noqa: S606 - the program needs no shell
    except OSError as error:
        sys.stderr.write(f"{program[0]}: {error.strerror}\n")
        os._exit(127)


main()

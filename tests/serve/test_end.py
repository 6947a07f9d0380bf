"""A server that is told to stop answers what it has accepted."""

import http.client
import json
import threading
import time
from pathlib import Path

from http_serving import Server
from serve_world import CPU, World


def test_no_request_is_lost_at_the_end(world: World, tmp_path: Path) -> None:
    body = json.dumps({"queries": ["read the file"] * 20, "layer": 4}).encode()
    headers = {"Content-Type": "application/json"}
    answered, lost = [0], []
    with Server("--index", world.home, *CPU, "--batch-size", "1", cwd=tmp_path) as server:

        def ask() -> None:
            while True:
                connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
                try:
                    connection.connect()
                except ConnectionRefusedError:
                    return  # the port is closed, so that nothing was accepted
                try:
                    connection.request("POST", "/search", body, headers)
                    reply = connection.getresponse()
                    assert reply.status == 200
                    reply.read()
                    answered[0] += 1
                except Exception as error:
                    lost.append(repr(error))
                finally:
                    connection.close()

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        while answered[0] < 30:
            time.sleep(0.01)
        code = server.stop()
        for thread in threads:
            thread.join()

        assert not lost
        assert code == 0
        assert "Traceback" not in server.log.read_text()

"""Storage servers on the loopback interface, which can be told to fail.

Google Cloud Storage is ``gcp-storage-emulator``, to which ``ifGenerationMatch=0`` and the header
``x-goog-generation`` are added, and S3 is ``moto``.
"""

import contextlib
import functools
import io
import json
import logging
import re
import threading
import types
from http import server
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from decoding_jax.storage import CloudPath, cloud_path


class Faults:
    """What a server does wrong.

    Attributes:
      of: a function of (method, path with query) that is asked before each request. It returns
        "503" to refuse the request, "cut" to close the connection after half of the body has
        arrived, "lost" to serve the request and send no answer, "stale" to list no files, or None.
      requests: the requests so far.
    """

    def __init__(self):
        self.of = lambda method, path: None
        self.requests = []

    def ask(self, method, path):
        self.requests.append((method, path))
        return self.of(method, path)

    def first(self, count, fault, matches):
        """Fails the next ``count`` requests whose method and path have these beginnings."""
        left = [count]

        def of(method, path):
            if left[0] and matches(method, path):
                left[0] -= 1
                return fault
            return None

        self.of = of


@contextlib.contextmanager
def google():
    """Serves ``gs://bucket``; yields its faults, and the variables that lead clients to it."""
    from gcp_storage_emulator.handlers import buckets
    from gcp_storage_emulator.server import RequestHandler
    from gcp_storage_emulator.storage import Storage

    logging.getLogger("gcp_storage_emulator").setLevel(logging.CRITICAL)
    faults, storage = Faults(), Storage(use_memory_fs=True)
    buckets.create_bucket("bucket", storage)

    class Handler(RequestHandler):
        def handle(self):
            # Clients cancel requests whose answers they no longer need.
            with contextlib.suppress(ConnectionError):
                super().handle()

        def parse_request(self):
            if not super().parse_request():
                return False
            fault = faults.ask(self.command, self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length // 2 if fault == "cut" else length)
            if fault == "503":
                self.send_error(503)
            elif fault == "stale":
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"{}")
            elif exists(parse_qs(urlsplit(self.path).query), body):
                self.send_error(412)
            elif fault != "cut":
                self.rfile = io.BytesIO(body)
                if fault == "lost":
                    self.wfile = io.BytesIO()
                return True
            self.close_connection = True
            return False

        def end_headers(self):
            name = unquote(urlsplit(self.path).path.partition("/bucket/")[2].removeprefix("o/"))
            if found := storage.objects.get("bucket", {}).get(name):
                self.send_header("x-goog-generation", found["generation"])
            super().end_headers()

    def exists(query, body):
        """Whether a request is to create an object that exists."""
        if query.get("ifGenerationMatch") != ["0"]:
            return False
        text = body.decode("latin-1")
        name = query.get("name") or [
            json.JSONDecoder().raw_decode(text, text.index("{"))[0]["name"]
        ]
        return name[0] in storage.objects.get("bucket", {})

    httpd = server.HTTPServer(("localhost", 0), functools.partial(Handler, storage))
    address = f"http://localhost:{httpd.server_port}"
    variables = {
        "STORAGE_EMULATOR_HOST": address,
        "TENSORSTORE_GCS_HTTP_URL": address,
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": "any",
        "NO_GCE_CHECK": "true",
    }
    with served(httpd):
        yield faults, variables


@contextlib.contextmanager
def amazon():
    """Serves ``s3://bucket`` as ``google`` serves ``gs://bucket``; it knows "503" and "lost"."""
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.moto_server.threaded_moto_server import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from moto.s3.models import s3_backends
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    faults = Faults()
    s3_backends[DEFAULT_ACCOUNT_ID]["aws"].create_bucket("bucket", "us-east-1")
    moto = DomainDispatcherApplication(create_backend_app)

    def application(environ, start_response):
        path = f"{environ['PATH_INFO']}?{environ['QUERY_STRING']}"
        if faults.ask(environ["REQUEST_METHOD"], path) == "503":
            start_response("503 Service Unavailable", [("Content-Length", "0")])
            return []
        return moto(environ, start_response)

    httpd = make_server("localhost", 0, application, True, request_handler=MotoRequestHandler)
    variables = {
        "AWS_ENDPOINT_URL": f"http://localhost:{httpd.server_port}",
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with served(httpd):
        yield faults, variables


@contextlib.contextmanager
def served(httpd):
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()


class Folder(NamedTuple):
    """A folder of one test.

    Attributes:
      path: its path.
      faults: the faults of its server.
      variables: the variables that lead clients, such as commands of a test, to the server.
    """

    path: CloudPath
    faults: Faults
    variables: dict[str, str]


@contextlib.contextmanager
def folder(scheme, server, name):
    """Leads the clients of this process to a server, and yields a ``Folder`` on it."""
    faults, variables = server
    with pytest.MonkeyPatch.context() as patch:
        for key, value in variables.items():
            patch.setenv(key, value)
        # Clients wait for seconds before they send a failed request again.
        patch.setattr("gcsfs.retry.asyncio", types.SimpleNamespace(sleep=no_sleep))
        cloud_path.file_system.cache_clear()
        try:
            yield Folder(
                CloudPath(f"{scheme}://bucket/{re.sub(r'[^a-z0-9_]', '-', name)}"), *server
            )
        finally:
            faults.of = lambda method, path: None
            cloud_path.file_system.cache_clear()


async def no_sleep(seconds):
    pass

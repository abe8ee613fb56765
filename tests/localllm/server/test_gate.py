"""Who may call: keys, names of hosts, origins of pages; what the log keeps; health and metrics."""

from __future__ import annotations

import json
import logging
import socket

import httpx2
import pytest
from running_server import Running, Serve, error_of, wait_until

from localllm.errors import ConfigurationError, GGUFError
from localllm.server.options import ServerOptions

PAGE = "https://page.example"


def options(server: Running, **headers: str) -> httpx2.Response:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx2.request("OPTIONS", server.url + "/v1/chat/completions", headers=sent)


def test_a_key_is_needed_where_one_is_set(serve: Serve) -> None:
    server = serve(api_key="secret")
    for given in ("", "Bearer wrong", "secret", "Basic secret", "Bearer", "Bearer secret2"):
        response = server.get("/v1/models", authorization=given)
        assert error_of(response, 401)["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"
        assert "secret" not in response.text
    for scheme in ("Bearer", "bearer", "BEARER"):
        assert server.get("/v1/models", authorization=f"{scheme} secret").status_code == 200
    assert server.get("/v1/models?api_key=secret&key=secret").status_code == 401
    assert server.get("/health").status_code in (200, 503)  # open to all; 503 while the model loads
    assert server.get("/metrics").status_code == 401
    assert server.get("/v1/nope").status_code == 401
    error_of(server.chat(), 401)


def test_preflight_needs_no_key(serve: Serve) -> None:
    server = serve(api_key="secret", cors_origins=(PAGE,))
    asked = {
        "origin": PAGE,
        "access_control_request_method": "POST",
        "access_control_request_headers": "authorization,content-type",
    }
    response = options(server, **asked)
    assert response.status_code == 204
    assert response.content == b""
    assert response.headers["access-control-allow-origin"] == PAGE
    assert response.headers["access-control-allow-headers"] == "authorization, content-type"
    assert "POST" in response.headers["access-control-allow-methods"]
    assert response.headers["vary"] == "Origin"
    assert "access-control-allow-credentials" not in response.headers


def test_errors_can_be_read_by_the_page(serve: Serve) -> None:
    server = serve(api_key="secret", cors_origins=(PAGE,))
    response = server.get("/v1/models", origin=PAGE)
    error_of(response, 401)
    assert response.headers["access-control-allow-origin"] == PAGE
    response = server.get("/v1/nope", origin=PAGE, authorization="Bearer secret")
    assert response.headers["access-control-allow-origin"] == PAGE


def test_other_pages_may_not(serve: Serve) -> None:
    server = serve(cors_origins=(PAGE,))
    for origin in ("https://evil.example", "null", "https://page.example.evil.example", "http://page.example"):
        response = server.get("/v1/models", origin=origin)
        assert response.status_code == 200
        assert "access-control-allow-origin" not in response.headers
        assert "access-control-allow-origin" not in options(server, origin=origin).headers
        refused = server.post("/v1/chat/completions", {}, origin=origin)
        assert error_of(refused, 403)["code"] == "origin_not_allowed"
    assert server.post("/tokenize", {"model": "m", "text": "a"}, origin=PAGE).status_code == 200
    assert server.post("/tokenize", {"model": "m", "text": "a"}, origin=server.url).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.1", ""])
def test_foreign_names_of_the_host(serve: Serve, host: str) -> None:
    """A page that points its own name here (DNS rebinding) gets nothing."""
    server = serve()
    assert error_of(server.get("/v1/models", host=host), 403)["code"] == "host_not_allowed"


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1:80", "[::1]:80", "LOCALHOST", "box.lan:9"])
def test_own_names_of_the_host(serve: Serve, host: str) -> None:
    assert serve(allowed_hosts=("box.lan",)).get("/v1/models", host=host).status_code == 200


def test_a_server_that_is_open_on_purpose_takes_any_name(serve: Serve) -> None:
    server = serve(host="0.0.0.0", api_key="k")
    assert server.get("/v1/models", host="box.lan", authorization="Bearer k").status_code == 200


def test_warnings() -> None:
    assert ServerOptions().warning() is None
    assert "API key" in (ServerOptions(host="0.0.0.0").warning() or "")
    assert "API key" in (ServerOptions(host="192.168.0.5").warning() or "")
    assert ServerOptions(host="0.0.0.0", api_key="x").warning() is None
    assert ServerOptions(host="::1").warning() is None
    assert "secret" not in repr(ServerOptions(api_key="secret"))
    for wrong in ({"cors_origins": ("*",)}, {"cors_origins": ("page.example",)}, {"api_key": "schlüssel"}):
        with pytest.raises(ConfigurationError):
            ServerOptions(**wrong)


def test_a_wildcard_has_no_credentials(serve: Serve) -> None:
    server = serve(cors_origins=("*",), api_key="k")
    response = options(server, origin="https://any.example", access_control_request_method="POST")
    assert response.headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in response.headers


def test_prompts_are_not_logged(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "localllm.server")
    server = serve()
    server.model.executor.say("the answer")
    response = server.chat("my secret", x=1)
    error_of(response)
    identity = server.chat("my secret").headers["x-request-id"]
    wait_until(lambda: identity in caplog.text)
    assert "POST /v1/chat/completions 200" in caplog.text
    assert "my secret" not in caplog.text
    assert "the answer" not in caplog.text


def test_prompts_are_logged_on_demand(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "localllm.server")
    server = serve(log_prompts=True)
    server.chat("my\nsecret", max_tokens=1)
    assert "my\\nsecret" in caplog.text


def test_paths_cannot_forge_lines_of_the_log(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "localllm.server")
    server = serve()
    server.get("/v1/x%0aFORGED")
    wait_until(lambda: "FORGED" in caplog.text)
    assert "\nFORGED" not in caplog.text


def test_faults_are_logged_and_not_told(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    server = serve()
    server.model.encode_chat = None  # type: ignore[assignment,method-assign]
    error = error_of(server.chat(), 500)
    assert error["message"] == "the server failed on this request"
    assert "TypeError" in caplog.text
    del server.model.encode_chat
    assert server.chat(max_tokens=1).status_code == 200


def test_a_model_that_cannot_be_loaded(serve: Serve) -> None:
    def load() -> None:
        raise GGUFError("/home/someone/models/x.gguf: the file is cut")

    server = serve(load=load)
    wait_until(lambda: server.get("/health").json()["status"] == "failed")
    error = error_of(server.chat(), 500)
    assert "someone" not in error["message"]
    assert server.get("/health").status_code == 503


def test_health_and_metrics(server: Running) -> None:
    assert server.chat(max_tokens=3, ignore_eos=True).status_code == 200
    health = server.get("/health")
    assert (health.status_code, health.json()["status"]) == (200, "ready")
    assert health.json()["executors"] == {"m": "scripted"}
    text = server.get("/metrics").text
    assert 'localllm_requests_total{path="/v1/chat/completions",status="200"}' in text
    assert 'localllm_tokens_total{kind="completion"}' in text
    assert 'localllm_kv_pages{model="m",state="held"} 0.0' in text
    assert 'localllm_model_loaded{model="m"} 1.0' in text
    server.get("/v1/something-else")
    assert "something-else" not in server.get("/metrics").text  # paths that do not exist are counted together


def test_oversized_headers_and_rubbish(server: Running) -> None:
    for data in (b"GET / HTTP/1.1\r\n" + b"X: " + b"a" * 200_000 + b"\r\n\r\n", b"\x00\x01\x02\r\n\r\n"):
        with socket.create_connection(server.address, timeout=60) as connection:
            connection.sendall(data)
            assert b" 400 " in connection.recv(1000)
    assert json.loads(server.get("/health").text)["status"] == "ready"

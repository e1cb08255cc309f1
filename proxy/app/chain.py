"""What a request passes, and in which order."""

from starlette.types import ASGIApp

from proxy.admission.estimates import Estimates
from proxy.admission.gate import Gate
from proxy.app.parts import Parts
from proxy.auth.guessing import Guessing
from proxy.endpoints import EndpointTable
from proxy.forward import Forward
from proxy.forward.dispatch import Timeouts
from proxy.middleware.access import AccessLayer
from proxy.middleware.admission import AdmissionLayer
from proxy.middleware.auth import AuthLayer
from proxy.middleware.clients import ClientAddress
from proxy.middleware.cors import CorsLayer
from proxy.middleware.endpoint import HEALTHZ, EndpointLayer
from proxy.middleware.errors import ErrorLayer
from proxy.policy import Limits, Policy


def chain(parts: Parts) -> ASGIApp:
    """Built from the inside out; a request reads it from the bottom up."""
    settings = parts.settings
    app: ASGIApp = _forward(parts)
    # Before the body is read, and after it is known whose request it is.
    app = AdmissionLayer(app, rates=parts.rates)
    # Who asks, and only then whether there is anything to be had: no map for scanners.
    app = AuthLayer(app, authenticator=parts.keys, guessing=Guessing(clock=parts.clocks.monotonic))
    # Before auth, which needs to know whose dialect and whose credentials a route speaks.
    app = EndpointLayer(app, table=EndpointTable.named(settings.endpoints))
    # Around everything that may refuse.
    app = ErrorLayer(app)
    if parts.cors:
        # Around errors: a page may read a refusal, too.
        app = CorsLayer(app, cors=parts.cors)
    # Around everything: no way out may leave a request unrecorded.
    return AccessLayer(
        app,
        log=parts.log,
        metrics=parts.metrics.requests,
        clock=parts.clocks.monotonic,
        probe=HEALTHZ,
        client_address=ClientAddress(settings.trusted_proxies, settings.client_ip_header),
    )


def _forward(parts: Parts) -> Forward:
    settings = parts.settings
    return Forward(
        policy=Policy(
            Limits(
                max_prompt_chars=settings.max_prompt_chars,
                max_schema_chars=settings.max_schema_chars,
                max_output_tokens=settings.max_output_tokens,
                max_choices=settings.max_choices,
                max_media_parts=settings.max_media_parts,
                output_overflow=settings.output_overflow,
                profile=settings.profile,
                engine=settings.engine,
                allow_fields=frozenset(settings.allow_fields),
                deny_fields=frozenset(settings.deny_fields),
                cache_salt=settings.cache_salt,
            )
        ),
        gate=Gate(
            rates=parts.rates,
            slots=parts.slots,
            estimates=Estimates(media_tokens=settings.media_tokens),
            budget=parts.budget,
        ),
        listing_slots=parts.listing_slots,
        buffers=parts.buffers,
        lifelines=parts.lifelines,
        upstream=parts.upstream,
        timeouts=Timeouts(
            body=settings.body_timeout_seconds,
            connect=settings.connect_timeout_seconds,
            first_byte=settings.first_byte_timeout_seconds,
            idle=settings.idle_timeout_seconds,
            total=settings.total_timeout_seconds,
        ),
        max_body_bytes=settings.max_body_bytes,
        max_response_bytes=settings.max_response_bytes,
        response_headers=frozenset(name.encode() for name in settings.response_headers),
        redact=settings.profile == "strict",
        keep_alive_seconds=settings.sse_keepalive_seconds,
        commit_seconds=settings.sse_commit_seconds,
        write_through=settings.write_through,
    )

"""The routes of the protocol and of the page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, File, Query, Request, UploadFile
from fastapi.responses import FileResponse, JSONResponse, Response, StreamingResponse
from pydantic import ValidationError
from torch import Tensor

from apac.classify.combine import Combine
from apac.classify.decision import Decision
from apac.classify.session import Settings
from apac.inference.workers import limit_to_one_torch_thread
from apac.serve.engine import FAILED
from apac.serve.events import Classified, describe, event, is_due, virtual_samples
from apac.serve.guard import RECORD, ClientLeft
from apac.serve.limits import Limits
from apac.serve.metrics import Metrics
from apac.serve.model import Model, Parameters
from apac.serve.pictures import read_picture
from apac.serve.protocol import (
    ErrorResponse,
    InferRequest,
    InferResponse,
    ModelMetadata,
    ModelReady,
    Ready,
    images_of,
    metadata,
    outputs,
    requested,
)
from apac.serve.refusal import Refusal, bad_request, unavailable

Result = TypeVar("Result")
DECODERS = 2  # threads that decode at the same time, which bounds their memory
ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": ErrorResponse}, 503: {"model": ErrorResponse}}
JSON_BODY = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/InferRequest"}}}}
EVENTS = {"content": {"text/event-stream": {"schema": {"type": "string"}}}}


@dataclass
class Services:
    """What the routes share."""

    models: dict[str, Model]
    limits: Limits
    metrics: Metrics
    draining: bool = False  # the server ends soon and takes no new clients
    listens_when_ready: bool = False  # not before, when other processes can answer
    decoders: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(DECODERS, "apac-decode", limit_to_one_torch_thread)
    )

    def close(self) -> None:
        self.decoders.shutdown()

    def model(self, name: str) -> Model:
        if name not in self.models:
            raise Refusal(404, "there is no model of that name; /v2 lists the models.")
        return self.models[name]

    @property
    def is_ready(self) -> bool:
        return not self.draining and all(model.engine.ready.is_set() for model in self.models.values())

    async def in_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self.decoders, partial(function, *arguments))

    def deadline(self) -> float:
        """Return the time at which a request that begins now is given up."""
        return asyncio.get_running_loop().time() + self.limits.seconds

    async def in_time(self, request: Request, deadline: float, work: Coroutine[Any, Any, Result]) -> Result:
        """Return the result of the work, unless it takes too long or the client leaves: then it is canceled."""
        remaining = deadline - asyncio.get_running_loop().time()
        task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_left(request))
        try:
            await asyncio.wait({task, gone}, timeout=remaining, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise ClientLeft if gone.done() else self.too_slow()
        finally:
            task.cancel()
            gone.cancel()

    def too_slow(self) -> Refusal:
        return unavailable(f"the decision took longer than {self.limits.seconds:g} s; try again, or with fewer passes.")

    def count(self, request: Request, model: Model, decision: Decision) -> None:
        self.metrics.decided(model, decision)
        request.scope[RECORD] |= {
            "model": model.name,
            "images": len(decision.labels),
            "passes": int(decision.passes.sum()),
            "settled": decision.stopped.count("certified"),
        }


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def add_protocol(app: FastAPI, services: Services) -> None:
    """Add the routes of the Open Inference Protocol v2, and /metrics."""

    @app.get("/v2", responses=ERRORS)
    async def server_metadata() -> dict[str, Any]:
        return {"name": "apac", "version": app.version, "extensions": [], "models": list(services.models)}

    @app.get("/v2/health/live", responses=ERRORS)
    async def live() -> dict[str, bool]:
        return {"live": True}

    @app.get("/v2/health/ready", response_model=Ready, responses={**ERRORS, 503: {"model": Ready | ErrorResponse}})
    async def ready() -> Response:
        is_ready = services.is_ready
        return JSONResponse({"ready": is_ready}, 200 if is_ready else 503)

    @app.get("/v2/models/{name}", responses=ERRORS)
    async def model_metadata(name: str) -> ModelMetadata:
        return metadata(services.model(name))

    @app.get(
        "/v2/models/{name}/ready",
        response_model=ModelReady,
        responses={**ERRORS, 503: {"model": ModelReady | ErrorResponse}},
    )
    async def model_ready(name: str) -> Response:
        is_ready = services.model(name).engine.ready.is_set() and not services.draining
        return JSONResponse({"name": name, "ready": is_ready}, 200 if is_ready else 503)

    @app.post(
        "/v2/models/{name}/infer",
        response_model=InferResponse,
        responses=ERRORS,
        openapi_extra={"requestBody": {"required": True, **JSON_BODY}},
    )
    async def infer(name: str, request: Request) -> Response:
        model, body = services.model(name), await request.body()

        async def work() -> bytes:
            asked, images, settings = await services.in_thread(_parse, model, body)
            decision = model.decision(await model.engine.decide(images, settings), settings)
            services.count(request, model, decision)
            return await services.in_thread(_answer, model, asked, decision)

        answer = await services.in_time(request, services.deadline(), work())
        return Response(answer, media_type="application/json")

    @app.get("/metrics", response_class=Response, responses={**ERRORS, 200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        return Response(services.metrics.text(services.models.values()), media_type="text/plain; version=0.0.4")


def _parse(model: Model, body: bytes) -> tuple[InferRequest, Tensor, Settings]:
    try:
        asked = InferRequest.model_validate_json(body)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        if problem["type"] == "json_invalid":
            raise bad_request("the body is not valid JSON.") from None
        place = ".".join(str(part) for part in problem["loc"]) or "the body"  # names of the schema, not of the request
        raise bad_request(f"{place} is missing or not valid; /openapi.json describes the requests.") from None
    settings = model.settings(asked.parameters)
    requested(asked)
    return asked, images_of(model, asked.inputs[0]), settings


def _answer(model: Model, asked: InferRequest, decision: Decision) -> bytes:
    tensors = outputs(model, decision, requested(asked), asked.parameters.top_k)
    answer = InferResponse(model_name=model.name, id=asked.id, outputs=tensors)
    return answer.model_dump_json(exclude={"id"} if asked.id is None else None).encode()


def add_upload(app: FastAPI, services: Services, static: Path) -> None:
    """Add the page, and the upload that it and people use."""

    @app.get("/", response_class=FileResponse, include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(static / "index.html")

    @app.get("/models", include_in_schema=False)
    async def described() -> list[dict[str, Any]]:
        """What the page asks for."""
        return [
            {"name": model.name, "classes": len(model.run.classes), "draws": model.takes_digits}
            for model in services.models.values()
            if model.takes_pictures
        ]

    @app.post("/classify", response_model=Classified, responses={**ERRORS, 200: EVENTS})
    async def classify(
        request: Request,
        image: Annotated[UploadFile, File(description="a PNG, JPEG, WebP or BMP file")],
        model: Annotated[str | None, Query(description="a name from /v2; by default the first")] = None,
        passes: Annotated[int | None, Query()] = None,
        error: Annotated[float | None, Query()] = None,
        limit: Annotated[int | None, Query()] = None,
        seed: Annotated[int, Query()] = 0,
        combine: Annotated[Combine | None, Query()] = None,
        top_k: Annotated[int | None, Query()] = None,
    ) -> Response:
        """Classify an image file. With `Accept: text/event-stream`, the response shows the decision being made."""
        chosen = services.model(next(iter(services.models)) if model is None else model)
        if not chosen.takes_pictures:
            raise bad_request("this model takes no image files; send FP32 images to its infer route.")
        settings = chosen.settings(
            Parameters(passes=passes, error=error, limit=limit, seed=seed, combine=combine, top_k=top_k)
        )
        deadline, content = services.deadline(), await image.read()
        pixels, images, notes = await services.in_time(
            request, deadline, services.in_thread(_read, chosen, content, services.limits)
        )
        if "text/event-stream" in request.headers.get("accept", ""):
            stream = _watch(services, request, chosen, pixels, images, settings, notes, deadline)
            first = await anext(stream)  # a refusal is still a response of its own
            return StreamingResponse(_chained(first, stream), media_type="text/event-stream")
        update = (await services.in_time(request, deadline, chosen.engine.decide(images, settings)))[0]
        services.count(request, chosen, update.decision)
        return JSONResponse(describe(chosen, update, settings, notes, top_k))


def _read(model: Model, content: bytes, limits: Limits) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Return the pixels (C, H, W) of a file, the images (1, C, H, W) for the classifier, and notes."""
    pixels, notes = read_picture(model.run, content, limits, "the image")
    return pixels, model.normalize(pixels[None]), notes


async def _chained(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for part in rest:
        yield part


async def _watch(
    services: Services,
    request: Request,
    model: Model,
    pixels: Tensor,
    images: Tensor,
    settings: Settings,
    notes: tuple[str, ...],
    deadline: float,
) -> AsyncIterator[bytes]:
    """Yield the events of an image while it is decided."""
    shown = 0
    async with model.engine.deciding(images, settings, watched=True) as updates:
        yield event("start", {"model": model.name, "limit": settings.rule.limit})
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    item = await updates.get()
            except TimeoutError:
                yield event("error", {"error": services.too_slow().sentence})
                return
            if item is None:
                yield event("error", {"error": FAILED})
                return
            update = item[1]
            if not is_due(update.decision, shown):
                continue
            passes = int(update.decision.passes)
            samples = await services.in_thread(virtual_samples, model, pixels, settings, shown, passes)
            shown = passes
            description = describe(model, update, settings, notes)
            yield event("decision" if update.is_final else "update", {**description, "samples": samples})
            if update.is_final:
                services.count(request, model, update.decision)
                return

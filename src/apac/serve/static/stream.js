// Send an image and read the events of its decision. EventSource can neither post nor send a token.
export async function* classify(blob, model, headers, signal) {
  const form = new FormData();
  form.append("image", blob, "image");
  let response;
  try {
    response = await fetch(`/classify?model=${encodeURIComponent(model)}`, {
      method: "POST",
      body: form,
      headers: { ...headers, Accept: "text/event-stream" },
      signal,
    });
  } catch {
    throw new Error("the server does not answer; try again.");
  }
  if (!response.ok) {
    const body = await response.json().catch(() => ({}));
    throw Object.assign(new Error(body.error ?? "the server refused the image."), { status: response.status });
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  let ended = false;
  for (;;) {
    const { done, value } = await reader.read().catch(() => ({ done: true }));
    if (done) break;
    text += value;
    let end;
    while ((end = text.indexOf("\n\n")) >= 0) {
      const [, name, data] = text.slice(0, end).match(/^event: (.*)\ndata: (.*)$/);
      text = text.slice(end + 2);
      ended ||= name === "decision" || name === "error";
      yield { name, data: JSON.parse(data) };
    }
  }
  if (!ended) throw new Error("the connection broke before the decision; try again.");
}

// A canvas to draw on with a mouse, a finger, a pen or the keyboard: black ink on white paper.
const WIDTH = 22; // of the pen, of 280 pixels
const STEP = 10;

export class Drawing {
  constructor(canvas, onEnter) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.onEnter = onEnter;
    this.clear();
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.moveTo(...this.place(event));
      this.lineTo(this.x, this.y);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!event.buttons) return;
      for (const part of event.getCoalescedEvents?.() ?? [event]) this.lineTo(...this.place(part));
    });
    canvas.addEventListener("keydown", (event) => this.press(event));
    canvas.addEventListener("focus", () => this.showPen());
    canvas.addEventListener("blur", () => this.showPen(false));
  }

  place(event) {
    const box = this.canvas.getBoundingClientRect();
    const scale = this.canvas.width / box.width;
    return [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
  }

  clear() {
    this.ink = document.createElement("canvas");
    this.ink.width = this.ink.height = this.canvas.width;
    const context = (this.pen = this.ink.getContext("2d"));
    context.fillStyle = "#fff";
    context.fillRect(0, 0, this.ink.width, this.ink.height);
    Object.assign(context, { lineWidth: WIDTH, lineCap: "round", lineJoin: "round", strokeStyle: "#000" });
    [this.isBlank, this.isDown] = [true, false];
    this.moveTo(this.canvas.width / 2, this.canvas.height / 4);
    this.showPen(false);
  }

  moveTo(x, y) {
    [this.x, this.y] = [x, y];
  }

  lineTo(x, y) {
    this.pen.beginPath();
    this.pen.moveTo(this.x, this.y);
    this.pen.lineTo(x, y);
    this.pen.stroke();
    this.moveTo(x, y);
    this.isBlank = false;
    this.showPen(document.activeElement === this.canvas && this.byKeys);
  }

  press(event) {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    this.byKeys = true;
    if (event.key in steps) {
      const [dx, dy] = steps[event.key];
      const limit = (value) => Math.min(Math.max(value, WIDTH), this.canvas.width - WIDTH);
      const [x, y] = [limit(this.x + STEP * dx), limit(this.y + STEP * dy)];
      if (this.isDown) this.lineTo(x, y);
      else this.moveTo(x, y);
    } else if (event.key === " ") {
      this.isDown = !this.isDown;
      if (this.isDown) this.lineTo(this.x, this.y);
    } else if (event.key === "Enter") {
      this.onEnter();
    } else {
      return;
    }
    event.preventDefault();
    this.showPen();
  }

  // The pen is drawn on the visible canvas only, not on the ink.
  showPen(visible = this.byKeys) {
    this.context.drawImage(this.ink, 0, 0);
    if (!visible) return;
    this.context.beginPath();
    this.context.arc(this.x, this.y, WIDTH / 2, 0, 2 * Math.PI);
    this.context.strokeStyle = this.isDown ? "#0b6bcb" : "#888";
    this.context.lineWidth = 3;
    this.context.stroke();
  }

  toBlob() {
    return new Promise((resolve) => this.ink.toBlob(resolve, "image/png"));
  }
}

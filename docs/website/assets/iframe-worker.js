// Browsers start no worker for a page that was opened from a file. The search then runs in a hidden frame, which offers a worker's interface.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.append(frame);
      const scope = frame.contentWindow;
      scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = frame.contentDocument.createElement("script");
      script.src = url;
      this.loaded = new Promise((resolve) => script.addEventListener("load", () => resolve(scope)));
      frame.contentDocument.documentElement.append(script);
    }

    postMessage(data) {
      this.loaded.then((scope) => scope.dispatchEvent(new scope.MessageEvent("message", { data })));
    }
  };
}

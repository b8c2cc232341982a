// Search on pages that are opened from files: a browser starts no worker there, so its script runs in a frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.body.appendChild(document.createElement("iframe"))
      frame.hidden = true
      const inner = (this.inner = frame.contentWindow)
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      inner.importScripts = (...urls) => urls.reduce((before, next) => before.then(() => load(next)), Promise.resolve())
      const load = (src) =>
        new Promise((resolve, reject) => {
          const script = inner.document.createElement("script")
          Object.assign(script, { src, onload: resolve, onerror: reject })
          inner.document.body.append(script)
        })
      this.loaded = load(new URL(url, location.href).href)
    }
    postMessage(data) {
      this.loaded.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })))
    }
    terminate() {}
  }
}

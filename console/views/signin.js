// Purpose: the sign-in: a function key, or the link to the sign-in of the platform.
import { setKey } from "../lib/api.js";
import { html, useState } from "../lib/html.js";
import { me, needsSignIn } from "../lib/state.js";
import { get } from "../lib/api.js";
import { ProblemNote } from "../parts/basic.js";

const SIGN_IN = "/.auth/login/aad?post_login_redirect_uri=/api/console/";

export default function SignIn() {
  const [key, setKeyText] = useState("");
  const [remember, setRemember] = useState(false);
  const [error, setError] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    setKey(key.trim(), remember);
    try {
      me.value = await get("/me");
      needsSignIn.value = false;
    } catch (problem) {
      setError(problem);
    }
  };
  return html`<section class="page narrow signin">
    <header class="page-head"><div><h1>Sign in</h1><p class="lead">The server accepts no request without a credential.</p></div></header>
    <div class="card stack">
      <h2>Microsoft Entra</h2>
      <p>If this app uses the sign-in of the platform, sign in there. No token reaches this page.</p>
      <p><a class="button primary" href=${SIGN_IN}>Sign in with Microsoft</a></p>
    </div>
    <form class="card stack" onSubmit=${submit}>
      <h2>Function key</h2>
      <label class="field">Key<input type="password" autocomplete="off" required value=${key} onInput=${(event) => setKeyText(event.currentTarget.value)} /></label>
      <label class="check"><input type="checkbox" checked=${remember} onChange=${(event) => setRemember(event.currentTarget.checked)} /> Remember in this tab</label>
      <p class="small muted">The key is a header of each request and stays in memory; it enters no address. All holders of a key are one user.</p>
      ${error ? html`<${ProblemNote} error=${error} />` : ""}
      <div class="actions end"><button type="submit" class="button primary">Use this key</button></div>
    </form>
  </section>`;
}

//! The cause of a program's end, from the last lines of its standard error.

/// Lines behind that of the cause that may continue it.
const CONTINUATIONS_MAX: usize = 4;

/// The line that names the cause, without the folders of paths: the model reads no paths of the machine.
/// Empty: there is none.
pub(super) fn find_cause(errors: &str) -> String {
    let lines: Vec<&str> = errors.lines().filter(|line| !line.trim().is_empty()).collect();
    let named = lines.iter().rposition(|line| names_error(line)).max(python_exception(&lines));
    let named = named.map(|at| npm_reason(&lines, at).unwrap_or(at));
    let plain = || lines.iter().rposition(|line| is_plain(line));
    let at = named.or_else(plain).or_else(|| lines.len().checked_sub(1));
    let rest = at.and_then(|at| lines.get(at..)).unwrap_or_default();
    shorten_paths(&with_continuation(rest))
}

fn names_error(line: &str) -> bool {
    let lower = line.to_lowercase();
    is_plain(line)
        && (contains_any(line, &["Error", "ERROR"])
            || contains_any(&lower, &["error:", "npm err", "exception", "fatal"])
            || contains_any(&lower, &["panic:", "panicked"])
            || is_of_uv(line))
}

/// True for a line that is no stack frame, no code and no hint behind an error.
fn is_plain(line: &str) -> bool {
    let is_in_group = line.trim_start().starts_with("| ");
    let is_outer = !line.starts_with(char::is_whitespace) || is_of_uv(line) || is_in_group;
    let is_hint = line.starts_with("Node.js v")
        || line.starts_with("exit status ")
        || contains_any(
            line,
            &["--help", "--trace-", "A complete log of this run can be found in"],
        );
    let behind_digits = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let is_native_frame = behind_digits.starts_with(": 0x");
    is_outer && !is_hint && !is_native_frame && line.contains(char::is_alphabetic)
}

/// Error lines of uv, which are indented. The second mark is that of a locale without Unicode.
fn is_of_uv(line: &str) -> bool {
    line.starts_with("  × ") || line.starts_with("  x ")
}

fn contains_any(text: &str, parts: &[&str]) -> bool {
    parts.iter().any(|part| text.contains(part))
}

/// Index of the line behind the last traceback: the name of an exception may lack the word.
fn python_exception(lines: &[&str]) -> Option<usize> {
    let start = lines.iter().rposition(|line| *line == "Traceback (most recent call last):")?;
    let behind = lines.get(start + 1..)?;
    let end = behind.iter().position(|line| !line.starts_with(char::is_whitespace))?;
    Some(start + 1 + end)
}

/// Index of the line with npm's reason, if the chosen line is one of npm: its last lines are advice.
fn npm_reason(lines: &[&str], chosen: usize) -> Option<usize> {
    lines.get(chosen).filter(|line| npm_text(line).is_some())?;
    lines.iter().position(|line| {
        let text = npm_text(line).filter(|_| is_plain(line)).unwrap_or_default();
        let (word, rest) = text.split_once(' ').unwrap_or_default();
        !rest.is_empty() && !["code", "errno", "path", "syscall"].contains(&word)
    })
}

fn npm_text(line: &str) -> Option<&str> {
    line.strip_prefix("npm error").or_else(|| line.strip_prefix("npm ERR!")).map(str::trim)
}

/// The first line, with the lines that continue it.
fn with_continuation(lines: &[&str]) -> String {
    let Some((first, rest)) = lines.split_first() else { return String::new() };
    let mut text = first.trim().trim_start_matches("| ").to_owned();
    let mut is_open = false;
    for line in rest.iter().take(CONTINUATIONS_MAX) {
        let part = line.trim();
        is_open &= line.starts_with(char::is_whitespace);
        // The second text is that of pydantic, whose lines behind it are the violations.
        is_open |= text.ends_with(':') || text.contains(" validation error");
        is_open |= part.starts_with("Caused by");
        if !is_open || part.starts_with("at ") {
            break;
        }
        text.push(' ');
        text.push_str(part);
    }
    text
}

/// Shortens absolute paths to their last component.
fn shorten_paths(text: &str) -> String {
    let mut shortened = String::with_capacity(text.len());
    let (mut before, mut rest) = (None, text);
    while let Some(next) = rest.chars().next() {
        let path = absolute_path(before, rest);
        let length = path.map_or(next.len_utf8(), str::len);
        let Some((taken, behind)) = rest.split_at_checked(length) else { break };
        shortened.push_str(path.map_or(taken, last_component));
        before = taken.chars().next_back();
        rest = behind;
    }
    shortened
}

/// The absolute path at the beginning of a text that follows this character.
fn absolute_path(before: Option<char>, text: &str) -> Option<&str> {
    let root_length = match text.as_bytes() {
        // A URL with a host. `file:///` has none.
        [b'/', b'/', third, ..] if before == Some(':') && *third != b'/' => return None,
        [b'/', ..] => 1,
        [drive, b':', b'/' | b'\\', ..] if drive.is_ascii_alphabetic() => 3,
        _ => return None,
    };
    if before.is_some_and(|c| c.is_alphanumeric() || "._-~/\\%@*+?)]}".contains(c)) {
        return None;
    }
    let quote = before.filter(|c| "'\"`".contains(*c));
    let ends_path = |c: char| c.is_whitespace() || "'\"`,;:()[]{}<>|".contains(c);
    let behind_root = text.get(root_length..)?;
    let end = quote.and_then(|quote| behind_root.find(quote));
    let end = end.or_else(|| behind_root.find(ends_path)).unwrap_or(behind_root.len());
    text.get(..root_length + end)
}

fn last_component(path: &str) -> &str {
    let separators = ['/', '\\'];
    let name = path.trim_end_matches(separators).rsplit(separators).next().unwrap_or_default();
    if name.is_empty() { path } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ends of standard errors as the programs write them, each with its cause.
    const ENDS: &[(&str, &str)] = &[
        ("", ""),
        ("set SHOP_KEY\n\n", "set SHOP_KEY"),
        // Node: an exception, a module that does not exist, and a rejected promise.
        (
            "file:///srv/app/tools.mjs:1\nthrow new Error(\"no key\");\n      ^\n\nError: no key\n    at file:///srv/app/tools.mjs:1:7\n    at async ModuleLoader.import (node:internal/modules/esm/loader:606:24)\n\nNode.js v20.20.2\n",
            "Error: no key",
        ),
        (
            "Error: start failed\n    at file:///srv/app/tools.mjs:1:7 {\n  [cause]: TypeError: no key\n      at file:///srv/app/tools.mjs:1:41\n}\n\nNode.js v20.20.2",
            "Error: start failed",
        ),
        (
            "node:internal/modules/cjs/loader:1210\n  throw err;\n  ^\n\nError: Cannot find module '/srv/my app/missing.js'\n    at Module._load (node:internal/modules/cjs/loader:1038:27)\n    at node:internal/main/run_main_module:28:49 {\n  code: 'MODULE_NOT_FOUND',\n  requireStack: []\n}\n\nNode.js v20.20.2",
            "Error: Cannot find module 'missing.js'",
        ),
        (
            "node:internal/modules/esm/resolve:873\n  throw new ERR_MODULE_NOT_FOUND(packageName, fileURLToPath(base), null);\n        ^\n\nError [ERR_MODULE_NOT_FOUND]: Cannot find package 'zod' imported from /srv/app/tools.mjs\n    at packageResolve (node:internal/modules/esm/resolve:873:9) {\n  code: 'ERR_MODULE_NOT_FOUND'\n}\n\nNode.js v20.20.2",
            "Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'zod' imported from tools.mjs",
        ),
        (
            "node:internal/process/promises:389\n      new UnhandledPromiseRejection(reason);\n      ^\n\nUnhandledPromiseRejection: This error originated either by throwing inside of an async function without a catch block. The promise rejected with the reason \"null\".\n    at throwUnhandledRejectionsMode (node:internal/process/promises:389:7) {\n  code: 'ERR_UNHANDLED_REJECTION'\n}\n\nNode.js v20.20.2",
            "UnhandledPromiseRejection: This error originated either by throwing inside of an async function without a catch block. The promise rejected with the reason \"null\".",
        ),
        (
            "file:///srv/app/tools.mjs:1\nthrow \"no key\";\n^\nno key\n(Use `node --trace-uncaught ...` to show where the exception was thrown)\n\nNode.js v20.20.2",
            "no key",
        ),
        (
            "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory\n----- Native stack trace -----\n\n 1: 0xb76db1 node::OOMErrorHandler(char const*) [node]\n10: 0x1a33f19 v8::internal::V8::FatalProcessOutOfMemory [node]\n",
            "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory",
        ),
        // npm and npx.
        (
            "npm error code E404\nnpm error 404 Not Found - GET https://registry.npmjs.org/@a%2fmcp - Not found\nnpm error 404\nnpm error 404  '@a/mcp@*' is not in this registry.\nnpm error 404\nnpm error 404 Note that you can also install from a\nnpm error 404 tarball, folder, http url, or git url.\nnpm error A complete log of this run can be found in: /srv/app/.npm/_logs/2026-01-02T03_04_05_678Z-debug-0.log\nnpm notice\nnpm notice New major version of npm available! 10.8.2 -> 11.0.0\n",
            "npm error 404 Not Found - GET https://registry.npmjs.org/@a%2fmcp - Not found",
        ),
        (
            "npm ERR! code ENOENT\nnpm ERR! syscall open\nnpm ERR! path /srv/app/package.json\nnpm ERR! errno -2\nnpm ERR! enoent ENOENT: no such file or directory, open '/srv/app/package.json'\nnpm ERR! enoent This is related to npm not being able to find a file.\nnpm ERR! enoent \n\nnpm ERR! A complete log of this run can be found in:\nnpm ERR!     /srv/app/.npm/_logs/2026-01-02T03_04_05_678Z-debug-0.log\n",
            "npm ERR! enoent ENOENT: no such file or directory, open 'package.json'",
        ),
        (
            "npm error could not determine executable to run\nnpm error A complete log of this run can be found in: /srv/app/x.log",
            "npm error could not determine executable to run",
        ),
        // Python: exceptions, a group, a module and a file that do not exist, options.
        (
            "Traceback (most recent call last):\n  File \"/srv/app/tools.py\", line 1, in <module>\n    import nosuch\nModuleNotFoundError: No module named 'nosuch'\n",
            "ModuleNotFoundError: No module named 'nosuch'",
        ),
        (
            "Traceback (most recent call last):\n  File \"/srv/app/tools.py\", line 3, in <module>\n    {}[\"x\"]\nKeyError: 'x'\n\nDuring handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n  File \"/srv/app/tools.py\", line 5, in <module>\n    check_configuration(\"set SHOP_KEY\")\nshop.NotConfigured: set SHOP_KEY\n",
            "shop.NotConfigured: set SHOP_KEY",
        ),
        (
            "  + Exception Group Traceback (most recent call last):\n  |   File \"/srv/app/tools.py\", line 1, in <module>\n  | ExceptionGroup: several (1 sub-exception)\n  +-+---------------- 1 ----------------\n    | ValueError: no key\n    +------------------------------------\n",
            "ValueError: no key",
        ),
        (
            "Traceback (most recent call last):\n  File \"/srv/app/tools.py\", line 4, in <module>\npydantic_core._pydantic_core.ValidationError: 1 validation error for Settings\nSHOP_KEY\n  Field required [type=missing, input_value={}, input_type=dict]\n",
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for Settings SHOP_KEY Field required [type=missing, input_value={}, input_type=dict]",
        ),
        (
            "python3: can't open file '/srv/app/missing.py': [Errno 2] No such file or directory\n",
            "python3: can't open file 'missing.py': [Errno 2] No such file or directory",
        ),
        ("/usr/local/bin/python3: No module named nosuch", "python3: No module named nosuch"),
        (
            "usage: tools.py [-h] --key KEY\ntools.py: error: the following arguments are required: --key\n",
            "tools.py: error: the following arguments are required: --key",
        ),
        // uvx, with and without Unicode.
        (
            "  × No solution found when resolving tool dependencies:\n  ╰─▶ Because mcp-none was not found in the package registry and you require\n      mcp-none, we can conclude that your requirements are unsatisfiable.\n",
            "× No solution found when resolving tool dependencies: ╰─▶ Because mcp-none was not found in the package registry and you require mcp-none, we can conclude that your requirements are unsatisfiable.",
        ),
        (
            "  x No solution found when resolving tool dependencies:\n  `-> Because there is no version of mcp-none==9 and you require mcp-none==9, we\n      can conclude that your requirements are unsatisfiable.\n",
            "x No solution found when resolving tool dependencies: `-> Because there is no version of mcp-none==9 and you require mcp-none==9, we can conclude that your requirements are unsatisfiable.",
        ),
        (
            "Installed 41 packages in 428ms\nerror: Failed to spawn: `mcp-none`\n  Caused by: program not found\n",
            "error: Failed to spawn: `mcp-none` Caused by: program not found",
        ),
        // Docker.
        (
            "Unable to find image 'mcp/none:latest' locally\ndocker: Error response from daemon: pull access denied for mcp/none, repository does not exist or may require 'docker login': denied: requested access to the resource is denied.\nSee 'docker run --help'.\n",
            "docker: Error response from daemon: pull access denied for mcp/none, repository does not exist or may require 'docker login': denied: requested access to the resource is denied.",
        ),
        (
            "docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?\n\nRun 'docker run --help' for more information\n",
            "docker: Cannot connect to the Docker daemon at unix:docker.sock. Is the docker daemon running?",
        ),
        // Shells.
        ("bash: line 1: nosuch: command not found", "bash: line 1: nosuch: command not found"),
        (
            "/srv/app/start.sh: line 3: exec: node: not found",
            "start.sh: line 3: exec: node: not found",
        ),
        // Rust.
        (
            "thread 'main' panicked at src/main.rs:2:5:\nno key\nnote: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n",
            "thread 'main' panicked at src/main.rs:2:5: no key",
        ),
        (
            "Error: cannot start\n\nCaused by:\n    0: cannot read /etc/shop.toml\n    1: No such file or directory (os error 2)\n",
            "Error: cannot start Caused by: 0: cannot read shop.toml 1: No such file or directory (os error 2)",
        ),
        // Go.
        (
            "panic: no key\n\ngoroutine 1 [running]:\nmain.main()\n\t/srv/app/main.go:4 +0x25\nexit status 2\n",
            "panic: no key",
        ),
        (
            "panic: no key [recovered]\n\tpanic: no key\n\ngoroutine 1 [running]:\npanic({0x467ac0?, 0x489f00?})\n\t/usr/local/go/src/runtime/panic.go:785 +0x132\n",
            "panic: no key [recovered]",
        ),
        ("2026/01/02 03:04:05 no key\nexit status 1\n", "2026/01/02 03:04:05 no key"),
        // Java.
        (
            "Exception in thread \"main\" java.lang.IllegalStateException: start failed\n\tat App.main(App.java:5)\nCaused by: java.io.FileNotFoundException: /srv/app/shop.yml (No such file or directory)\n\tat java.base/java.io.FileInputStream.open0(Native Method)\n\t... 1 more\n",
            "Caused by: java.io.FileNotFoundException: shop.yml (No such file or directory)",
        ),
        (
            "Error: Unable to access jarfile /srv/app/none.jar",
            "Error: Unable to access jarfile none.jar",
        ),
        // .NET.
        (
            "Unhandled exception. System.IO.FileNotFoundException: Could not find file 'C:\\srv\\app\\shop.json'.\n   at Program.<Main>$(String[] args) in C:\\srv\\app\\Program.cs:line 3\n   --- End of stack trace from previous location ---\n",
            "Unhandled exception. System.IO.FileNotFoundException: Could not find file 'shop.json'.",
        ),
    ];

    #[test]
    fn cause_is_found_among_lines_of_each_runtime() {
        for (errors, expected) in ENDS {
            assert_eq!(find_cause(errors), *expected, "{errors}");
        }
    }

    #[test]
    fn absolute_paths_are_shortened() {
        for (text, expected) in [
            ("/a/b c", "b c"),
            ("see /a/b/, '/a b/c d' and (/a/b:3:7)", "see b, 'c d' and (b:3:7)"),
            ("PATH=/usr/bin:/opt/bin file:///a/b.mjs", "PATH=bin:bin file:b.mjs"),
            ("C:\\a\\b.py:3 \"d:/a b/c\"", "b.py:3 \"c\""),
            // These are no paths of the machine.
            ("https://a.example/b/c?d=e GET", "https://a.example/b/c?d=e GET"),
            ("a/b ./a/b ~/a @a/b 1/2 / // é/ü", "a/b ./a/b ~/a @a/b 1/2 / // é/ü"),
        ] {
            assert_eq!(shorten_paths(text), expected);
        }
    }
}

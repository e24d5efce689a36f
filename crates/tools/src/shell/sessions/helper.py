# Runs one command in a session and reports the changed files. NAME, DIGEST and DATA are defined before this text.
import base64, ctypes, hashlib, json, os, resource, selectors, shutil, signal, stat, subprocess, sys, tempfile, time


def descendants():
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/%s/stat" % name, "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
                parents.setdefault(int(fields[1]), []).append((int(name), int(fields[21])))
            except OSError:
                pass
    found, open_ids = {}, [os.getpid()]
    while open_ids:
        for child, pages in parents.get(open_ids.pop(), []):
            if child not in found:
                found[child] = pages
                open_ids.append(child)
    return found


def kill_all():
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        for child in descendants():
            try:
                os.kill(child, signal.SIGKILL)
            except OSError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def run(command, folder, home, limits):
    def bound():
        size = limits["workspace_bytes"]
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": home, "LANG": "C.UTF-8"}
    started = time.monotonic()
    child = subprocess.Popen(
        ["bash", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=bound)
    pipe = child.stdout.fileno()
    os.set_blocking(pipe, False)
    selector = selectors.DefaultSelector()
    selector.register(pipe, selectors.EVENT_READ)
    kept, total, end, is_open, checked = bytearray(), 0, None, True, 0
    page = os.sysconf("SC_PAGE_SIZE")
    while end is None:
        now = time.monotonic()
        if is_open and selector.select(0.02):
            part = os.read(pipe, 65536)
            is_open = bool(part)
            total += len(part)
            kept += part
            del kept[:max(0, len(kept) - limits["output_bytes"])]
        elif not is_open:
            time.sleep(0.02)
        if total > limits["flood_bytes"]:
            end = "OutputLimit"
        elif now - started > limits["time"]:
            end = "TimeLimit"
        elif child.poll() is not None:
            code = child.returncode
            end = {"Exited": code if code >= 0 else 128 - code}
        elif now - checked > 0.05:
            checked = now
            processes = descendants()
            used = sum(processes.values()) * page
            if used > limits["memory_bytes"] or len(processes) > limits["processes"]:
                end = "MemoryLimit"
    kill_all()
    # What the ended processes left in the pipe.
    while is_open and total <= limits["flood_bytes"]:
        try:
            part = os.read(pipe, 65536)
        except BlockingIOError:
            break
        is_open = bool(part)
        total += len(part)
        kept += part
    del kept[:max(0, len(kept) - limits["output_bytes"])]
    return end, bytes(kept), total - len(kept)


def read_workspace(home, before, limits):
    state = {"written": [], "parts": [], "seen": set(), "refused": {}, "further": 0, "bytes": 0, "count": 0}

    def refuse(path, reason):
        if len(state["refused"]) < 100:
            state["refused"][path.decode("utf-8", "replace")] = reason
        else:
            state["further"] += 1

    def visit(folder, prefix):
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            path = prefix + entry.name
            mode = entry.stat(follow_symlinks=False)
            try:
                name = path.decode("utf-8")
            except UnicodeDecodeError:
                refuse(path, "InvalidName")
                continue
            state["count"] += 1
            if stat.S_ISLNK(mode.st_mode):
                state["seen"].add(name)
                refuse(path, "SymbolicLink")
            elif stat.S_ISDIR(mode.st_mode):
                visit(entry.path, path + b"/")
            elif not stat.S_ISREG(mode.st_mode):
                state["seen"].add(name)
                refuse(path, "SpecialFile")
            else:
                state["seen"].add(name)
                state["bytes"] += mode.st_size
                if state["count"] > limits["files"]:
                    refuse(path, "TooManyFiles")
                elif mode.st_size > limits["file_bytes"] or state["bytes"] > limits["workspace_bytes"]:
                    refuse(path, "TooLarge")
                else:
                    with open(entry.path, "rb") as file:
                        content = file.read()
                    digest = hashlib.sha256(content).hexdigest()
                    if before.get(name) != digest:
                        state["written"].append({"path": name, "size": len(content), "sha256": digest})
                        state["parts"].append(content)

    visit(os.fsencode(home), b"")
    state["deleted"] = sorted(set(before) - state["seen"])
    return state


def main():
    # Orphans become children of this process, so that none outlives the command.
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    for name in os.listdir(DATA):
        if name.startswith("turnwheel-") and name != NAME:
            os.remove(os.path.join(DATA, name))
    claimed = os.path.join(DATA, NAME + ".claimed")
    try:
        # Only one execution can claim the input: a repeated request runs nothing.
        os.rename(os.path.join(DATA, NAME), claimed)
    except FileNotFoundError:
        return {"state": "missing"}
    with open(claimed, "rb") as file:
        content = file.read()
    os.remove(claimed)
    if hashlib.sha256(content).hexdigest() != DIGEST:
        return {"state": "damaged"}
    header, _, data = content.partition(b"\n")
    request = json.loads(header)
    limits = request["limits"]
    root = tempfile.mkdtemp(prefix="turnwheel-")
    try:
        home = os.path.join(root, "workspace")
        os.mkdir(home)
        before, at = {}, 0
        for one in request["files"]:
            path = os.path.join(home, one["path"])
            os.makedirs(os.path.dirname(path), exist_ok=True)
            part = data[at:at + one["size"]]
            at += one["size"]
            before[one["path"]] = hashlib.sha256(part).hexdigest()
            with open(path, "wb") as file:
                file.write(part)
        folder = os.path.join(home, request["folder"])
        if not os.path.isdir(folder):
            return {"state": "no_folder"}
        end, output, dropped = run(request["command"], folder, home, limits)
        result = {"state": "ran", "end": end, "output": base64.b64encode(output).decode(), "dropped": dropped}
        try:
            found = read_workspace(home, before, limits)
        except OSError as error:
            return dict(result, unreadable=error.strerror or "unknown error")
        for name in ("written", "deleted", "refused", "further"):
            result[name] = found[name]
        if found["written"]:
            with open(os.path.join(DATA, NAME + ".out"), "wb") as file:
                file.write(b"".join(found["parts"]))
        return result
    finally:
        shutil.rmtree(root, ignore_errors=True)


print(NAME + json.dumps(main()), flush=True)

"""What ships beside the binaries: units that systemd accepts without a word, a package that unpacks to what the units name, monitoring
files that name only metrics there are."""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess

import pytest

import harness

DEPLOY = harness.SOURCE / "deploy"
UNITS = ["holdfast-supervisor.service", "holdfast-frontend@.service"]


@pytest.mark.parametrize("unit", UNITS)
def test_units_pass_verify_without_a_word(unit, tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: units are not verified here")
    for u in UNITS:  # verify wants to see the binaries: those of this build in place of the installed ones
        text = (DEPLOY / "systemd" / u).read_text()
        (tmp_path / u).write_text(text.replace("/usr/bin/", f"{harness.BIN.resolve()}/"))
    r = subprocess.run(["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(tmp_path / unit)], capture_output=True, text=True, timeout=60)
    assert r.returncode == 0 and r.stderr.strip() == "" and r.stdout.strip() == "", r.stderr + r.stdout


@pytest.mark.parametrize("unit", UNITS)
def test_units_are_closed_to_the_outside(unit):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: the hardening of the units is not rated here")
    r = subprocess.run(["systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=25", str((DEPLOY / "systemd" / unit).resolve())],
                       capture_output=True, text=True, timeout=60)
    assert r.returncode == 0, r.stdout[-3000:] + r.stderr  # an exposure above 2.5 of 10


def settings(unit):
    out = {}
    for line in (DEPLOY / "systemd" / unit).read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, value = line.split("=", 1)
            out[key] = value
    return out


def test_units_say_what_the_processes_promise():
    s = settings(UNITS[0])
    assert s["Type"] == "notify" and int(s["WatchdogSec"]) > 0
    assert s["RestartPreventExitStatus"].split() == ["64", "65"] and s["Restart"] == "on-failure"
    assert s["OOMPolicy"] == "continue", "an OOM kill of a worker would end the unit"
    assert int(s["TimeoutStopSec"]) > 30, "less than the drain time-out"
    f = settings(UNITS[1])
    assert f["RestartPreventExitStatus"].split() == ["64"]
    assert f["Type"] == "notify" and int(f["WatchdogSec"]) > 0, "a port that is taken would look like a start"
    for pulls in ("Wants", "Requires", "BindsTo", "Upholds", "Requisite", "PartOf"):
        assert pulls not in f, "each restart of a frontend would start the engine, also one that cannot run or was stopped, or go down with it"
    for unit in UNITS:
        assert settings(unit)["StartLimitIntervalSec"] == "0", "systemd would give up on what passes: a port taken, memory not free yet"
        assert {k: settings(unit).get(k) for k in ("NoNewPrivileges", "ProtectSystem", "ReadOnlyPaths", "User")} == {
            "NoNewPrivileges": "yes", "ProtectSystem": "strict", "ReadOnlyPaths": "/run", "User": "holdfast"}


def flags_of(program):
    r = subprocess.run([str(harness.BIN / program), "--help"], capture_output=True, text=True, timeout=20)
    return set(re.findall(r"--[a-z][a-z-]+", r.stdout))


@pytest.mark.parametrize("unit,program", zip(UNITS, ["holdfast-supervisor", "holdfast-frontend"]))
def test_flags_in_units_exist(unit, program):
    used = set(re.findall(r"--[a-z][a-z-]+", settings(unit)["ExecStart"]))
    assert used and used <= flags_of(program)


def test_flags_in_examples_exist():
    kubernetes = (DEPLOY / "kubernetes" / "holdfast.yaml").read_text()
    environment = (DEPLOY / "config" / "holdfast.env").read_text()
    known = flags_of("holdfast-supervisor") | flags_of("holdfast-frontend") | {"--help"}
    used = set()
    for line in (kubernetes + environment).splitlines():
        used |= set(re.findall(r"--[a-z][a-z-]+", line))
    assert used and used <= known, used - known


def test_environment_file_names_every_variable_of_the_units():
    names = set(re.findall(r"^([A-Z_]+)=", (DEPLOY / "config" / "holdfast.env").read_text(), re.M))
    used = set()
    for unit in UNITS:
        used |= set(re.findall(r"\$\{?([A-Z_]+)\}?", settings(unit)["ExecStart"]))
    assert names == used


def test_monitoring_names_only_metrics_there_are():
    sources = "".join(p.read_text() for d in ("supervisor", "frontend", "worker") for p in (harness.SOURCE / d).rglob("*.cc"))
    known = set(re.findall(r'"(holdfast_[a-z_]+)"', sources))
    assert len(known) > 20
    dashboard = json.loads((DEPLOY / "grafana" / "holdfast.json").read_text())
    expressions = [t["expr"] for p in dashboard["panels"] for t in p["targets"]]
    alerts = re.findall(r"^\s+expr: (.*)$", (DEPLOY / "prometheus" / "holdfast-alerts.yml").read_text(), re.M)
    assert len(expressions) > 10 and len(alerts) > 5
    for text in expressions + alerts:
        names = re.findall(r"\bholdfast_[a-z_]+", text)
        assert names, text
        for name in names:
            assert name in known or re.sub(r"_(bucket|sum|count)$", "", name) in known, f"{name} in: {text}"


def test_yaml_files_parse():
    yaml = pytest.importorskip("yaml", reason="python3-yaml is not installed: YAML files are not parsed here")
    for name in ("prometheus/prometheus.yml", "prometheus/holdfast-alerts.yml", "kubernetes/holdfast.yaml"):
        assert list(yaml.safe_load_all((DEPLOY / name).read_text()))


def test_package_installs_into_a_scratch_root(tmp_path, monkeypatch):
    for tool in ("cpack", "dpkg-deb"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed: no package is built here")
    config = harness.BUILD.resolve() / "CPackConfig.cmake"
    if not config.exists():
        pytest.skip(f"{config} does not exist: the build folder was configured without packaging")
    r = subprocess.run(["cpack", "-G", "DEB", "--config", str(config), "-B", str(tmp_path / "out")], capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert r.returncode == 0, r.stdout[-2000:] + r.stderr[-2000:]
    package, = (tmp_path / "out").glob("holdfast_*.deb")
    root = tmp_path / "root"
    subprocess.run(["dpkg-deb", "-x", str(package), str(root)], check=True, timeout=120)
    control = tmp_path / "control"
    subprocess.run(["dpkg-deb", "-e", str(package), str(control)], check=True, timeout=120)
    assert (control / "conffiles").read_text().split() == ["/etc/holdfast/holdfast.env"]
    for script in ("postinst", "prerm", "postrm"):
        assert os.access(control / script, os.X_OK)
        subprocess.run(["sh", "-n", str(control / script)], check=True)
    for path in ["usr/bin/holdfast", "usr/bin/holdfast-supervisor", "usr/bin/holdfast-frontend", "usr/bin/holdfast-worker", "etc/holdfast/holdfast.env",
                 "usr/lib/systemd/system/holdfast-supervisor.service", "usr/lib/systemd/system/holdfast-frontend@.service",
                 "usr/lib/sysusers.d/holdfast.conf", "usr/lib/tmpfiles.d/holdfast.conf", "usr/share/doc/holdfast/operations.md",
                 "usr/share/holdfast/holdfast-tiny.gguf", "usr/share/doc/holdfast/api.md", "usr/share/doc/holdfast/restart.md", "usr/share/doc/holdfast/default-model.md",
                 "usr/share/doc/holdfast/examples/grafana/holdfast.json"]:
        assert (root / path).is_file(), path
    strays = [str(p.relative_to(root)) for p in root.rglob("*") if p.is_file() and p.relative_to(root).parts[0] not in ("usr", "etc")]
    assert not strays
    assert {p.name for p in (root / "usr/bin").iterdir()} == {"holdfast", "holdfast-supervisor", "holdfast-frontend", "holdfast-worker"}
    # The installed binaries run, and find one another beside themselves.
    for name in ("holdfast", "holdfast-supervisor", "holdfast-frontend", "holdfast-worker"):
        version = subprocess.run([str(root / "usr/bin" / name), "--version"], capture_output=True, text=True, timeout=20)
        assert version.returncode == 0 and "0." in version.stdout
    model = harness.model_file("script")
    monkeypatch.setattr(harness, "BIN", pathlib.Path(root / "usr/bin"))
    with harness.Server(model) as s:
        assert s.chat("<S03>", max_tokens=3).status == 200
        worker = s.pids("holdfast-worker")[0]
        assert os.readlink(f"/proc/{worker}/exe") == str(root / "usr/bin/holdfast-worker")


def test_what_runs_goes_on_as_it_is_while_a_package_is_replaced(tmp_path, monkeypatch):
    """An upgrade leaves the old processes alone; the next worker of theirs is still of their version."""
    for name in ("holdfast", "holdfast-supervisor", "holdfast-frontend", "holdfast-worker"):
        shutil.copy(harness.BIN / name, tmp_path / name)
    model = harness.model_file("script")
    monkeypatch.setattr(harness, "BIN", tmp_path)
    with harness.Server(model) as s:
        assert s.chat("<S03>", max_tokens=3).status == 200
        other = tmp_path / "new"
        other.write_text("#!/bin/sh\nexit 64\n")  # does not understand the supervisor that calls it
        other.chmod(0o755)
        os.replace(other, tmp_path / "holdfast-worker")
        worker = s.worker()
        os.kill(worker, signal.SIGKILL)
        harness.wait_for(lambda: [p for p in s.pids("holdfast-worker") if p != worker], 20, "the next worker")
        harness.wait_for(lambda: s.chat("<S03>", max_tokens=3).status == 200, 20, "serving again")
        following = s.worker()
        assert open(f"/proc/{following}/comm").read() == "holdfast-worker\n"
        assert os.readlink(f"/proc/{following}/exe").startswith(str(tmp_path / "holdfast-worker"))

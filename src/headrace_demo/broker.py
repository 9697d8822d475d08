"""A Kafka broker of one node on this machine, from the jars of a folder, for tests, the demo and benchmarks.

It can be stopped, killed and started again with the same ports and data. Ports are chosen below those that the system
uses for outgoing connections, so they stay free while the broker is down. If another server uses a port, binding it
fails and other ports are chosen.
"""

from __future__ import annotations

import atexit
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.errors import EngineError
from headrace.support.extras import import_extra

JARS = "HEADRACE_KAFKA_JARS"
ARCHIVE = "broker.jsa"  # shared archive of class data beside the jars, which halves the start time
USER, PASSWORD = "anna", "p@ss;w'rd-4826"  # of the listener that requires a login
PORTS = range(15_000, 32_000)
ATTEMPTS = 20
READY, TAKEN = b"Kafka Server started", b"Address already in use"
LONGEST = 300.0  # seconds that a start may take
HEAP = ["-Xms128m", "-Xmx512m"]
SHORT = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xlog:disable", "-Xlog:all=error:stderr"]
LOGS = [
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info",
]
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qk"
SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAIN:PLAINTEXT,LOGIN:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAIN",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.login.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required"
    f' user_{USER}="{PASSWORD}";',
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "broker.heartbeat.interval.ms": "300",
    "broker.session.timeout.ms": "3000",
    "log.retention.ms": "-1",  # messages have old timestamps, so a topic has no retention unless one is set
    "log.retention.check.interval.ms": "1000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "log.initial.task.delay.ms": "1000",
    **{
        f"{topic}.{name}": "1"
        for topic, names in {
            "offsets.topic": ("replication.factor", "num.partitions"),
            "transaction.state.log": ("replication.factor", "min.isr", "num.partitions"),
            "share.coordinator.state.topic": ("replication.factor", "min.isr", "num.partitions"),
        }.items()
        for name in names
    },
}


class Broker:
    """A broker that runs from its creation. `servers` is its address; `secured` is the address that requires `login`,
    with `tls` over TLS.
    """

    def __init__(
        self,
        jars: Path,
        settings: Mapping[str, str] | None = None,
        *,
        archive: Path | None = None,
        tls: bool = False,
    ) -> None:
        self.jars, self.settings = jars, {**SETTINGS, **(settings or {})}
        self.folder = Path(tempfile.mkdtemp(prefix="headrace-kafka-"))
        self.certificate = self._certify() if tls else None
        self._archive, self._admin = archive, None
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.remove)
        self.ports = _ports()
        self._write_settings()
        self._format()
        self._start(ATTEMPTS)

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.ports[0]}"

    @property
    def secured(self) -> str:
        return f"127.0.0.1:{self.ports[1]}"

    @property
    def login(self) -> dict[str, str]:
        """Return a client's settings for `secured`."""
        who = {"sasl.mechanism": "PLAIN", "sasl.username": USER, "sasl.password": PASSWORD}
        if self.certificate is None:
            return {"security.protocol": "SASL_PLAINTEXT", **who}
        return {"security.protocol": "SASL_SSL", "ssl.ca.location": str(self.certificate), **who}

    @property
    def admin(self) -> Any:
        """Return a client for topics and offsets, which lives as long as the broker."""
        if self._admin is None:
            admin = import_extra("confluent_kafka.admin", "kafka", "a broker's client")
            self._admin = admin.AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        return self._admin

    # --- start and stop ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the broker again, with the same ports and data."""
        self._start(1)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()

    def remove(self) -> None:
        """End the process and delete its data."""
        self.kill()
        atexit.unregister(self.remove)
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- topics --------------------------------------------------------------------------------------------------------

    def create(self, topic: str, partitions: int = 1, **settings: str) -> str:
        """Create a topic and return its name. Settings are given as `retention_ms="1000"`."""
        new = import_extra("confluent_kafka.admin", "kafka", "a broker's client").NewTopic
        config = {name.replace("_", "."): value for name, value in settings.items()}
        self._done(self.admin.create_topics([new(topic, partitions, 1, config=config)]))
        return topic

    def widen(self, topic: str, partitions: int) -> None:
        """Increase the number of partitions to `partitions`."""
        new = import_extra("confluent_kafka.admin", "kafka", "a broker's client").NewPartitions
        self._done(self.admin.create_partitions([new(topic, partitions)]))

    def delete(self, topic: str) -> None:
        self._done(self.admin.delete_topics([topic]))

    def cut(self, topic: str, partition: int, offset: int) -> None:
        """Remove the messages before an offset, as retention does."""
        place = import_extra("confluent_kafka", "kafka", "a broker's client").TopicPartition
        self._done(self.admin.delete_records([place(topic, partition, offset)]))

    @staticmethod
    def _done(futures: Mapping[Any, Any]) -> None:
        for future in futures.values():
            future.result(60)

    # --- the process -------------------------------------------------------------------------------------------------

    def _start(self, attempts: int) -> None:
        assert self._process is None, "it is running"
        for left in reversed(range(attempts)):
            log = self.folder / "log"
            with open(log, "wb") as output:
                self._process = subprocess.Popen(  # noqa: S603
                    [*self._java(), "kafka.Kafka", str(self._file)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=self.folder,
                    start_new_session=True,  # Ctrl-C must reach only the program that uses the broker
                )
            if self._is_ready(log):
                return
            said = log.read_bytes()
            self.kill()
            if TAKEN not in said or not left:
                raise EngineError(f"the Kafka broker did not start: {said[-2000:].decode(errors='replace')}")
            self.ports = _ports()
            self._write_settings()

    def _is_ready(self, log: Path) -> bool:
        end = time.monotonic() + LONGEST
        while self._process is not None and self._process.poll() is None and time.monotonic() < end:
            if READY in log.read_bytes():
                return True
            time.sleep(0.05)
        return False

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait()

    def _certify(self) -> Path:
        """Create a self-signed certificate for this machine, which clients must be given."""
        keys, certificate = self.folder / "keys.p12", self.folder / "certificate.pem"
        tool = [(java() or "java").removesuffix("java") + "keytool", "-keystore", str(keys), "-storepass", PASSWORD]
        make = ["-genkeypair", "-storetype", "PKCS12", "-alias", "broker", "-keyalg", "EC", "-validity", "3650"]
        _run([*tool, *make, "-dname", "CN=localhost", "-ext", "san=ip:127.0.0.1,dns:localhost"])
        _run([*tool, "-exportcert", "-rfc", "-alias", "broker", "-file", str(certificate)])
        kinds = "PLAIN:PLAINTEXT,LOGIN:SASL_SSL,CONTROLLER:PLAINTEXT"
        self.settings |= {
            "listener.security.protocol.map": kinds,
            "ssl.keystore.location": str(keys),
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.password": PASSWORD,
        }
        return certificate

    @property
    def _file(self) -> Path:
        return self.folder / "server.properties"

    def _write_settings(self) -> None:
        plain, login, controller = (f"127.0.0.1:{port}" for port in self.ports)
        places = {
            "listeners": f"PLAIN://{plain},LOGIN://{login},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAIN://{plain},LOGIN://{login}",
            "controller.quorum.voters": f"1@{controller}",
            "log.dirs": str(self.folder / "data"),
        }
        self._file.write_text("".join(f"{name}={value}\n" for name, value in {**self.settings, **places}.items()))

    def _format(self) -> None:
        _run([*self._java(), "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(self._file)])

    def _java(self) -> list[str]:
        paths = ":".join(map(str, sorted(self.jars.glob("*.jar"))))
        return [java() or "java", *HEAP, *SHORT, *self._classes(), *LOGS, "-cp", paths]

    def _classes(self) -> list[str]:
        if self._archive is not None:
            return [f"-XX:ArchiveClassesAtExit={self._archive}"]
        found = self.jars.parent / ARCHIVE
        return [f"-XX:SharedArchiveFile={found}"] if found.exists() else []


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False)  # noqa: S603
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace")
        raise EngineError(f"the Kafka broker's folder cannot be created: {said}")


def java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return shutil.which(f"{home}/bin/java" if home else "java")


def jars(*folders: Path) -> Path | None:
    """Return the folder with the broker's jars: HEADRACE_KAFKA_JARS, or the first of `folders` that contains them."""
    named = os.environ.get(JARS)
    places = [Path(named)] if named else folders
    return next(
        (
            place.absolute()
            for place in places
            if any(place.glob("kafka_2.*.jar")) and any(place.glob("slf4j-simple-*.jar"))
        ),
        None,
    )


def needed(who: str) -> Path:
    """Return the folder with the broker's jars. Raise if there is none. `who` names the program that starts a broker."""
    import_extra("confluent_kafka", "kafka", who)
    found = jars(Path("build/kafka/libs"), Path(__file__).parents[3] / "build" / "kafka" / "libs")
    if found is None:
        raise EngineError(
            f"{who} starts a Kafka broker, and its jars are missing; run `make broker` in headrace's sources to download them into"
            f" build/kafka/libs, with Maven, or set {JARS} to the folder that contains them"
        )
    return found


def make_archive(jars: Path) -> None:
    """Create the shared archive of the classes that a broker loads. The broker also runs without it."""
    with tempfile.TemporaryDirectory(dir=jars.parent) as folder:
        made = Path(folder) / ARCHIVE
        broker = Broker(jars, archive=made)
        broker.create("warm")
        broker.stop()
        broker.remove()
        made.rename(jars.parent / ARCHIVE)


def _ports() -> list[int]:
    """Return three random ports. Whether they are free is known only when they are bound."""
    return random.SystemRandom().sample(PORTS, 3)

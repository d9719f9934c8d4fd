# SPDX-License-Identifier: BSD-3-Clause
"""Python's face of librtrs against a server in the same process."""
import array
import asyncio
import errno
import gc
import os
import pathlib
import signal
import sys
import tempfile
import threading
import time
import traceback
import unittest
from unittest import mock

import rtrs
from forwarder import Cable

SERVER = "rtrs+tcp://127.0.0.1:0"


def handle(request):
    """What the cases ask for, by the message."""
    if request.message == b"fail":
        raise OSError(errno.EDOM, "as asked")
    if request.message == b"raise":
        raise ValueError("a bug of the handler")
    if request.message == b"leave":
        raise SystemExit("a handler that leaves")
    if request.message == b"forget":
        return rtrs.Server.LATER
    if request.message == b"size":
        return str(len(request.view)).encode()
    if request.message.startswith(b"make "):
        return bytes(int(request.message[5:])) if request.message[5:] != b"0" else None
    return request.data


class Calls(unittest.TestCase):
    def setUp(self):
        self.server = rtrs.Server(SERVER, handle)
        self.uri = f"rtrs+tcp://127.0.0.1:{self.server.port}"
        self.client = rtrs.Client(self.uri)

    def tearDown(self):
        self.client.close()
        self.server.close()

    def fails(self, number, *arguments, **named):
        with self.assertRaises(rtrs.RtrsError) as caught:
            self.client.call(*arguments, **named)
        self.assertEqual(caught.exception.errno, number)

    def test_an_answer_is_as_long_as_the_handler_made_it(self):
        self.assertEqual(self.client.call(b"echo", b"abc", room=4096), b"abc")
        self.assertEqual(self.client.call(b"make 0", room=4096), b"")
        self.assertEqual(self.client.call(b"echo", room=4096), b"")

    def test_texts_go_as_utf_8(self):
        self.assertEqual(self.client.call("écho", "größe", room=20), "größe".encode())
        self.assertEqual(self.client.call(bytearray(b"echo"), memoryview(b"abc"), room=4), b"abc")
        with self.assertRaises(TypeError):
            self.client.call(7)
        with self.assertRaises(TypeError):
            self.client.call(b"echo", {"not": "bytes"})

    def test_data_of_every_size_come_back(self):
        edge = 256 * 1024
        for size in (1, 200, 239, 240, 241, 4096, edge - 1, edge, edge + 1, 3 * edge + 7):
            data = bytes(i % 251 for i in range(size))
            for room in (size, size + 1, size + edge):
                with self.subTest(size=size, room=room):
                    self.assertEqual(self.client.call(b"echo", data, room=room), data)
            self.assertEqual(self.client.call(b"size", data, room=20), str(size).encode())

    def test_answers_of_any_length_are_asked_for(self):
        for size in (0, 1, 4088, 4089, 300_000, 3_000_000):
            with self.subTest(size=size):
                self.assertEqual(self.client.ask(f"make {size}", most=3_000_000), bytes(size))
        with self.assertRaisesRegex(rtrs.RtrsError, "room for it") as caught:
            self.client.ask("make 11", most=10)
        self.assertEqual(caught.exception.errno, errno.EMSGSIZE)
        self.assertEqual(self.client.ask("echo", "größe"), "größe".encode())

    def test_data_in_parts_are_one(self):
        parts = [b"one ", bytearray(b"two "), array.array("B", b"three"), b"." * 300_000]
        into = [bytearray(6), bytearray(1), bytearray(400_000)]
        whole = b"".join(bytes(part) for part in parts)
        length = self.client.call(b"echo", parts, into=into)
        self.assertEqual(b"".join(bytes(part) for part in into)[:length], whole)

    def test_what_the_handler_raises_is_the_callers_error(self):
        self.fails(errno.EDOM, b"fail", room=4)
        self.fails(errno.EDOM, b"fail", b"data without an answer")
        self.fails(errno.EIO, b"raise")

    def test_a_request_that_nobody_has_any_more_ends_with_eio(self):
        self.fails(errno.EIO, b"forget")
        self.fails(errno.EIO, b"leave")
        self.assertEqual(self.client.call(b"echo", b"abc", room=4), b"abc")

    def test_an_answer_longer_than_its_room_is_an_error(self):
        self.fails(errno.EMSGSIZE, b"make 11", room=10)
        self.fails(errno.EMSGSIZE, b"make 300001", room=300_000)
        self.assertEqual(self.client.call(b"make 10", room=10), bytes(10))

    def test_a_message_has_a_limit(self):
        self.fails(errno.EMSGSIZE, b"x" * (rtrs.MAX_MESSAGE + 1))
        self.client.call(b"x" * rtrs.MAX_MESSAGE, b"y", room=1)

    def test_a_buffer_that_cannot_be_written_is_refused(self):
        with self.assertRaises(BufferError):
            self.client.call(b"echo", b"abc", into=b"not writable")

    def test_registered_memory_takes_part_as_any_other(self):
        memory = bytearray(900_000)
        with self.client.registered(memory) as held:
            view = memoryview(held)
            view[:5] = b"hello"
            self.assertEqual(self.client.call(b"echo", view[:400_000], into=view[500_000:]), 400_000)
            with self.assertRaises(rtrs.RtrsError) as caught:
                with self.client.registered(memory):
                    pass
            self.assertEqual(caught.exception.errno, errno.EEXIST)
        self.assertEqual(memory[500_000:500_005], b"hello")
        with self.assertRaises(BufferError):
            with self.client.registered(b"not writable"):
                pass

    def test_paths_are_seen_and_changed(self):
        path, = self.client.paths()
        self.assertTrue(path["connected"] and path["in_use"])
        self.assertEqual((path["silent_ns"], path["silences"], path["moved"]), (0, 0, 0))
        for number, change, address in ((errno.EEXIST, self.client.add_path, path["address"]),
                                        (errno.EBUSY, self.client.remove_path, path["address"]),
                                        (errno.EINVAL, self.client.add_path, "[::1")):
            with self.assertRaises(rtrs.RtrsError) as caught:
                change(address)
            self.assertEqual(caught.exception.errno, number)
        self.client.add_path("127.0.0.2:1")
        self.assertEqual(len(self.client.paths()), 2)
        self.client.set_policy("round-robin")
        with self.assertRaisesRegex(rtrs.RtrsError, "min-latency"):
            self.client.set_policy("any")
        self.assertEqual(self.client.limits, (256, 256 * 1024))

    def test_a_silent_path_is_told(self):
        cable = Cable(self.server.port)
        self.client.add_path(f"127.0.0.1:{cable.port}")
        self.client.set_policy("round-robin")

        def until(holds):
            deadline = time.monotonic() + 60
            while not holds(self.client.paths()[1]):
                self.assertLess(time.monotonic(), deadline)
                self.assertEqual(self.client.call(b"echo", b"abc", room=4), b"abc")

        until(lambda path: path["connected"] and path["requests"] > 0)
        cable.mute()
        until(lambda path: path["silent_ns"] > 0)
        path = self.client.paths()[1]
        self.assertGreater(path["silences"], 0)
        self.assertGreater(path["moved"], 0)
        cable.mend()
        until(lambda path: path["connected"] and path["silent_ns"] == 0)

    def test_a_session_name_is_taken_only_once(self):
        with rtrs.Client(self.uri, session_name="mine"):
            with self.assertRaises(rtrs.RtrsError):
                rtrs.Client(self.uri, session_name="mine", connect_timeout_ms=300)

    def test_a_wrong_uri_says_what_to_write(self):
        with self.assertRaisesRegex(rtrs.RtrsError, "rtrs[+]tcp://"):
            rtrs.Client("tcp://127.0.0.1")
        with self.assertRaisesRegex(rtrs.RtrsError, "policy"):
            rtrs.Client(self.uri, policy="any")


class Security(unittest.TestCase):
    def test_a_server_knows_the_name_of_a_clients_key(self):
        with tempfile.TemporaryDirectory() as directory:
            keys = pathlib.Path(directory, "keys.psk")
            keys.write_text("host1:" + "a1" * 32 + "\n")
            keys.chmod(0o600)
            tls = {"tls": rtrs.TLS_REQUIRE, "tls_psk": keys}
            with rtrs.Server(SERVER, lambda request: request.user.encode(), **tls) as server:
                uri = f"rtrs+tcp://127.0.0.1:{server.port}"
                with rtrs.Client(uri, **tls) as client:
                    self.assertEqual(client.call(b"who", room=20), b"host1")
                with self.assertRaises(rtrs.RtrsError):
                    rtrs.Client(uri)


    def test_without_tls_a_key_is_proven(self):
        with tempfile.TemporaryDirectory() as directory:
            keys = pathlib.Path(directory, "keys.psk")
            keys.write_text("host1:" + "a1" * 32 + "\n")
            keys.chmod(0o600)
            with rtrs.Server(SERVER, lambda request: request.user.encode(), auth_psk=keys) as server:
                uri = f"rtrs+tcp://127.0.0.1:{server.port}"
                with rtrs.Client(uri, auth_psk=keys) as client:
                    self.assertEqual(client.ask("who"), b"host1")
                with self.assertRaisesRegex(rtrs.RtrsError, "auth_psk"):
                    rtrs.Client(uri)


class Options(unittest.TestCase):
    def test_an_option_that_nobody_knows_is_refused_with_the_nearest_name(self):
        for wrong, right in (("auth_pks", "auth_psk"), ("TLS", "tls"), ("max_session", "max_sessions")):
            with self.subTest(wrong), self.assertRaisesRegex(TypeError, f"'{wrong}'.*'{right}'"):
                rtrs.Server(SERVER, handle, **{wrong: 1})
        with rtrs.Server(SERVER, handle) as server:
            for wrong, right in (("auth_pks", "auth_psk"), ("call_timeout", "call_timeout_ms"),
                                 ("tls_user", "tls_username")):
                with self.subTest(wrong), self.assertRaisesRegex(TypeError, f"'{wrong}'.*'{right}'"):
                    rtrs.Client(f"rtrs+tcp://127.0.0.1:{server.port}", **{wrong: 1})
        with self.assertRaisesRegex(TypeError, "'colour'"):
            rtrs.Server(SERVER, handle, colour="red")

    def test_a_value_that_does_not_fit_is_refused(self):
        for wrong in ({"max_sessions": 2**32}, {"lanes": -1}, {"auth_psk": "keys\0.psk"}):
            with self.subTest(wrong), self.assertRaisesRegex(ValueError, next(iter(wrong))):
                rtrs.Client(SERVER, **wrong) if "lanes" in wrong else rtrs.Server(SERVER, handle, **wrong)

    def test_a_file_of_keys_without_a_name_lets_nobody_in(self):
        for name in ("auth_psk", "tls_psk", "tls_certificates"):
            with self.subTest(name), self.assertRaisesRegex(rtrs.RtrsError, name):
                rtrs.Server(SERVER, handle, **{name: ""})


class Sessions(unittest.TestCase):
    def test_a_server_hears_of_clients_and_their_paths(self):
        told, gone = [], threading.Event()

        def up(session):
            session.seen = 0
            told.append(("up", session.name, session.paths))

        def down(session):
            told.append(("down", session.name, session.seen))
            gone.set()

        def count(request):
            request.session.seen += 1
            return f"{request.session.name} {request.session.peer}"

        with rtrs.Server(SERVER, count, session_up=up, session_down=down,
                         paths_changed=lambda session: told.append(session.paths)) as server:
            with rtrs.Client(f"rtrs+tcp://127.0.0.1:{server.port}/mine") as client:
                name, peer = client.ask("who").decode().split()
                client.ask("again")
                self.assertEqual(name, "mine")
                self.assertRegex(peer, r"^127\.0\.0\.1:\d+$")
            self.assertTrue(gone.wait(20))
        self.assertEqual(told, [("up", "mine", 0), 1, 0, ("down", "mine", 2)])

    def test_an_event_that_raises_does_no_harm(self):
        def raises(session):
            raise ValueError("a bug of the program, which is printed")

        with rtrs.Server(SERVER, handle, session_up=raises) as server:
            with rtrs.Client(f"rtrs+tcp://127.0.0.1:{server.port}") as client:
                self.assertEqual(client.ask("echo", b"abc"), b"abc")


class Limits(unittest.TestCase):
    def test_a_request_too_large_for_the_server_is_not_carried_out(self):
        seen = []
        with rtrs.Server(SERVER, lambda request: seen.append(request.message),
                         max_request_size=1_000_000, request_memory=600_000) as server, \
                rtrs.Client(f"rtrs+tcp://127.0.0.1:{server.port}") as client:
            for size, number in ((1_000_001, errno.EMSGSIZE), (700_000, errno.ENOBUFS)):
                with self.assertRaises(rtrs.RtrsError) as caught:
                    client.call(b"out", bytes(size))
                self.assertEqual(caught.exception.errno, number)
                with self.assertRaises(rtrs.RtrsError) as caught:
                    client.call(b"in", room=size)
                self.assertEqual(caught.exception.errno, number)
            self.assertEqual(seen, [])
            for _ in range(3):  # nothing of those has kept memory
                client.call(b"fits", bytes(500_000))
            self.assertEqual(seen, [b"fits"] * 3)

    def test_without_a_permit_nowait_says_again(self):
        go = threading.Event()
        with rtrs.Server(SERVER, lambda request: go.wait(20) and None, workers=8,
                         queue_depth=4) as server, \
                rtrs.Client(f"rtrs+tcp://127.0.0.1:{server.port}", lanes=1) as client:
            threads = []
            refused = None
            while refused is None:
                self.assertLess(len(threads), 20)
                threads.append(threading.Thread(target=client.call, args=(b"wait",)))
                threads[-1].start()
                try:
                    asyncio.run(self.probe(client))
                except rtrs.RtrsError as error:
                    refused = error.errno
            self.assertEqual(refused, errno.EAGAIN)
            go.set()
            for thread in threads:
                thread.join()

    @staticmethod
    async def probe(client):
        task = asyncio.ensure_future(client.call_async(b"probe", flags=rtrs.NOWAIT))
        await asyncio.sleep(0.01)
        if task.done():
            task.result()
        task.cancel()


class Tasks(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.server = rtrs.Server(SERVER, handle)
        self.client = rtrs.Client(f"rtrs+tcp://127.0.0.1:{self.server.port}")

    async def asyncTearDown(self):
        self.client.close()
        self.server.close()

    async def test_a_thousand_calls_at_once_all_come_back(self):
        calls = [self.client.call_async(b"echo", str(i).encode(), room=8) for i in range(1000)]
        answers = await asyncio.gather(*calls)
        self.assertEqual([int(answer) for answer in answers], list(range(1000)))

    async def test_answers_of_any_length_are_asked_for(self):
        answers = await asyncio.gather(self.client.ask_async("make 5"), self.client.ask_async("make 0"),
                                       self.client.ask_async("make 900000"),
                                       self.client.ask_async("make 6", most=5), return_exceptions=True)
        self.assertEqual(answers[:3], [bytes(5), b"", bytes(900_000)])
        self.assertEqual(answers[3].errno, errno.EMSGSIZE)

    async def test_large_calls_and_errors_beside_each_other(self):
        data = bytes(range(256)) * 4000
        large = self.client.call_async(b"echo", data, room=len(data))
        failing = self.client.call_async(b"fail")
        answers = await asyncio.gather(large, failing, return_exceptions=True)
        self.assertEqual(answers[0], data)
        self.assertEqual(answers[1].errno, errno.EDOM)


class Control(unittest.IsolatedAsyncioTestCase):
    async def test_calls_on_the_control_connection_keep_their_order(self):
        seen = []
        with rtrs.Server(SERVER, lambda request: seen.append(int(request.message))) as server, \
                rtrs.Client(f"rtrs+tcp://127.0.0.1:{server.port}") as client:
            await asyncio.gather(*(client.call_async(str(i), flags=rtrs.CONTROL) for i in range(600)))
        self.assertEqual(seen, list(range(600)))


class Cancellation(unittest.IsolatedAsyncioTestCase):
    async def test_a_cancelled_call_leaves_the_client_usable(self):
        go = threading.Event()
        with rtrs.Server(SERVER, lambda request: request.message == b"wait" and go.wait(20) and None,
                         workers=2) as server, \
                rtrs.Client(f"rtrs+tcp://127.0.0.1:{server.port}") as client:
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(client.call_async(b"wait"), 0.05)
            go.set()


class Forks(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        self.seen = []
        self.sessions = []
        self.server = rtrs.Server(SERVER, self.handle, session_up=self.sessions.append,
                                  session_down=self.sessions.append)
        self.uri = f"rtrs+tcp://127.0.0.1:{self.server.port}"
        self.client = rtrs.Client(self.uri)

    def tearDown(self):
        self.client.close()
        self.server.close()

    def handle(self, request):
        self.seen.append(request.message)
        return request.data

    @staticmethod
    def fork(work):
        """A child that does this. Its process id."""
        child = os.fork()
        if child:
            return child
        signal.alarm(20)  # a child that hangs is no child that ends well
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def ended_well(self, child):
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)

    def refuses(self, function, *arguments):
        with self.assertRaisesRegex(rtrs.RtrsError, "fork.*connect") as caught:
            function(*arguments)
        self.assertEqual(caught.exception.errno, rtrs.FORKED)

    def use_all(self):
        self.refuses(self.client.ask, "child")
        self.refuses(self.client.call, "child", b"data")
        self.refuses(lambda: asyncio.run(self.client.ask_async("child")))
        self.refuses(lambda: asyncio.run(self.client.call_async("child", flags=rtrs.CONTROL)))
        self.refuses(self.client.add_path, "127.0.0.2:1")
        self.refuses(self.client.remove_path, "127.0.0.2:1")
        self.refuses(self.client.set_policy, "round-robin")
        self.refuses(self.client.registered(bytearray(4096)).__enter__)
        self.assertFalse(self.client.alive)
        self.assertEqual(self.client.paths(), [])

    def test_a_child_cannot_use_its_parents_client_and_the_parent_gets_its_own_answers(self):
        child = self.fork(self.use_all)
        for i in range(300):
            self.assertEqual(self.client.ask("parent", str(i)), str(i).encode())
        self.ended_well(child)
        self.assertEqual(set(self.seen), {b"parent"})

    def test_a_child_that_closes_or_leaves_does_no_harm(self):
        def close():
            self.client.close()
            self.server.close()

        for work in (close, lambda: None):
            self.ended_well(self.fork(work))
            self.assertEqual(self.client.ask("parent", b"abc"), b"abc")
        self.assertEqual(len(self.sessions), 1)

    def test_a_child_connects_by_itself(self):
        def connect():
            self.client = rtrs.Client(f"rtrs+tcp://127.0.0.1:{self.server.port}")
            assert self.client.ask("child", b"abc") == b"abc"
            assert asyncio.run(self.client.ask_async("child", b"def")) == b"def"
            self.ended_well(self.fork(self.use_all))
            self.client.close()

        child = self.fork(connect)
        self.assertEqual(self.client.ask("parent", b"abc"), b"abc")
        self.ended_well(child)

    async def test_a_child_that_closes_leaves_the_tasks_of_its_parent_alone(self):
        self.assertEqual(await self.client.ask_async("parent", b"abc"), b"abc")
        self.ended_well(self.fork(self.client.close))
        answer = await asyncio.wait_for(self.client.ask_async("parent", b"def"), 20)
        self.assertEqual(answer, b"def")


class Closing(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        self.go = threading.Event()
        self.came = threading.Semaphore(0)
        self.server = rtrs.Server(SERVER, self.handle, workers=4)
        self.client = rtrs.Client(f"rtrs+tcp://127.0.0.1:{self.server.port}")

    def tearDown(self):
        self.go.set()
        self.client.close()
        self.server.close()

    def handle(self, request):
        if request.message == b"wait":
            self.came.release()
            self.go.wait(20)
        return request.data

    def fails(self, number, function, *arguments):
        with self.assertRaises(rtrs.RtrsError) as caught:
            function(*arguments)
        self.assertEqual(caught.exception.errno, number)

    def test_what_is_closed_says_so(self):
        self.client.close()
        self.client.close()
        for function, *arguments in (
                (self.client.ask, "m"), (self.client.call, "m", b"data"), (self.client.paths,),
                (self.client.add_path, "127.0.0.2"), (self.client.remove_path, "127.0.0.2"),
                (self.client.set_policy, "round-robin"), (lambda: self.client.limits,),
                (self.client.registered(bytearray(9)).__enter__,)):
            self.fails(errno.EBADF, function, *arguments)
        self.assertFalse(self.client.alive)
        self.server.close()
        self.server.close()
        self.fails(errno.EBADF, lambda: self.server.port)

    async def test_tasks_of_a_closed_client_end(self):
        self.assertEqual(await self.client.ask_async("m", b"abc"), b"abc")
        tasks = [asyncio.ensure_future(self.client.ask_async("wait", flags=flags)) for flags in (0, rtrs.CONTROL)]
        for _ in tasks:
            await asyncio.to_thread(self.came.acquire)
        self.client.close()
        for answer in await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20):
            self.assertEqual(answer.errno, errno.ECANCELED)
        for call in (self.client.ask_async("m"), self.client.call_async("m")):
            with self.assertRaises(rtrs.RtrsError) as caught:
                await call
            self.assertEqual(caught.exception.errno, errno.EBADF)

    async def test_tasks_end_when_another_thread_closes(self):
        task = asyncio.ensure_future(self.client.ask_async("wait"))
        await asyncio.to_thread(self.came.acquire)
        await asyncio.to_thread(self.client.close)
        with self.assertRaises(rtrs.RtrsError) as caught:
            await asyncio.wait_for(task, 20)
        self.assertEqual(caught.exception.errno, errno.ECANCELED)

    def test_calls_of_other_threads_end_when_their_client_is_closed(self):
        numbers = []

        def ask(flags):
            try:
                self.client.ask("wait", flags=flags)
            except rtrs.RtrsError as error:
                numbers.append(error.errno)

        threads = [threading.Thread(target=ask, args=(flags,)) for flags in (0, rtrs.CONTROL)]
        for thread in threads:
            thread.start()
            self.came.acquire()
        closers = [threading.Thread(target=self.client.close) for _ in range(2)]
        for thread in closers:
            thread.start()
        for thread in threads + closers:
            thread.join(20)
            self.assertFalse(thread.is_alive())
        self.assertEqual(numbers, [errno.ECANCELED] * 2)

    def test_a_signal_may_close_what_it_has_interrupted(self):
        before = signal.signal(signal.SIGUSR1, lambda *_: self.client.close())
        try:
            for i in range(200):
                with rtrs.Client(f"rtrs+tcp://127.0.0.1:{self.server.port}") as self.client:
                    killer = threading.Timer(i / 20_000, os.kill, (os.getpid(), signal.SIGUSR1))
                    killer.start()
                    with self.assertRaises(rtrs.RtrsError):
                        while True:
                            self.client.ask("m")
                    killer.join()
        finally:
            signal.signal(signal.SIGUSR1, before)

    def replaced(self, name, function):
        """Within it, the library has function(real, *arguments) for one of its own."""
        library = rtrs._buffers.library
        real = getattr(library, name)
        return mock.patch.object(library, name, lambda *arguments: function(real, *arguments))

    def test_a_signal_may_close_what_is_being_closed(self):
        def disconnect(real, client):
            signal.raise_signal(signal.SIGUSR1)
            real(client)
            signal.raise_signal(signal.SIGUSR1)

        def late(*_):
            raise TimeoutError("close() hangs")

        before = [(number, signal.signal(number, handler)) for number, handler in
                  ((signal.SIGUSR1, lambda *_: self.client.close()), (signal.SIGALRM, late))]
        try:
            signal.alarm(20)
            with self.replaced("rtrs_disconnect", disconnect):
                self.client.close()
        finally:
            signal.alarm(0)
            for number, handler in before:
                signal.signal(number, handler)
        self.fails(errno.EBADF, self.client.ask, "m")

    def test_a_client_is_not_freed_while_somebody_closes_it(self):
        order = []

        def shutdown(real, client):
            thread = threading.Thread(target=lambda: self.client.alive)
            thread.start()
            thread.join()
            order.append("shutdown")
            if "disconnect" not in order:
                real(client)

        def disconnect(real, client):
            order.append("disconnect")
            real(client)

        with self.replaced("rtrs_shutdown", shutdown), self.replaced("rtrs_disconnect", disconnect):
            self.client.close()
        self.assertEqual(order, ["shutdown", "disconnect"])

    def test_an_interrupt_in_a_call_leaves_nobody_inside(self):
        freed = []

        def disconnect(real, client):
            freed.append(True)
            real(client)

        def ask(last):
            """Interrupted in the line of the module that comes `last`. False: it has fewer."""
            left = last

            def trace(frame, event, _):
                nonlocal left
                if frame.f_globals.get("__package__") != "rtrs":
                    return None
                if event == "line":
                    left -= 1
                    if left < 0:
                        raise KeyboardInterrupt
                return trace

            sys.settrace(trace)
            try:
                client.ask("m")
            except KeyboardInterrupt:
                return True
            finally:
                sys.settrace(None)
            return False

        with self.replaced("rtrs_disconnect", disconnect):
            interrupted = True
            for count in range(1000):
                client = rtrs.Client(f"rtrs+tcp://127.0.0.1:{self.server.port}")
                interrupted = ask(count)
                client.close()
                self.assertEqual(len(freed), count + 1)
                if not interrupted:
                    break
        self.assertFalse(interrupted)
        self.assertGreater(count, 10)

    def test_memory_may_be_registered_while_its_client_is_closed(self):
        memory = bytearray(4096)
        with self.client.registered(memory):
            self.client.close()
        memory.append(0)

    def test_memory_stays_until_the_last_call_has_left_its_closed_client(self):
        inside, leave = threading.Event(), threading.Event()

        def ask(real, *arguments):
            inside.set()
            leave.wait(20)
            return real(*arguments)

        memory = bytearray(4096)
        with self.replaced("rtrs_ask", ask):
            threads = [threading.Thread(target=self.fails, args=(errno.ECANCELED, self.client.ask, "m")),
                       threading.Thread(target=self.client.close)]
            threads[0].start()
            inside.wait(20)
            try:
                with self.client.registered(memory):
                    threads[1].start()
                    while self.client.alive:
                        time.sleep(0.001)
                    while not self.closed():
                        time.sleep(0.001)
                self.assertRaises(BufferError, memory.append, 0)
            finally:
                leave.set()
                for thread in threads:
                    thread.join(20)
        memory.append(0)

    def closed(self):
        try:
            return self.client.paths() is None
        except rtrs.RtrsError as error:
            return error.errno == errno.EBADF

    async def test_only_its_own_thread_changes_an_event_loop(self):
        loop, removals = asyncio.get_running_loop(), []
        real = loop.remove_reader

        def remove_reader(descriptor):
            removals.append(threading.get_ident())
            return real(descriptor)

        await self.client.ask_async("m")
        with mock.patch.object(loop, "remove_reader", remove_reader):
            await asyncio.to_thread(self.client.close)
            for _ in range(20_000):
                if removals:
                    break
                await asyncio.sleep(0.001)
        self.assertEqual(removals, [threading.get_ident()])

    def test_a_client_is_closed_although_its_event_loop_is(self):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(self.client.ask_async("m"))
        error = RuntimeError("Event loop is closed")
        with mock.patch.object(loop, "remove_reader", mock.Mock(side_effect=error)):
            self.client.close()
        self.fails(errno.EBADF, self.client.ask, "m")
        loop.close()

    def test_a_server_serves_until_it_is_closed_whoever_has_it(self):
        port = rtrs.Server(SERVER, lambda request: request.data).port
        gc.collect()
        with rtrs.Client(f"rtrs+tcp://127.0.0.1:{port}") as client:
            self.assertEqual(client.ask("m", b"abc"), b"abc")


class Once(unittest.TestCase):
    def test_a_call_whose_path_dies_is_carried_out_once(self):
        begun, go, runs = threading.Event(), threading.Event(), []

        def slow(request):
            runs.append(request.id)
            begun.set()
            go.wait(20)
            return request.message

        with rtrs.Server(SERVER, slow, workers=4) as server:
            cable = Cable(server.port)
            with rtrs.Client(f"rtrs+tcp://127.0.0.1:{cable.port}") as client:
                answers = []
                thread = threading.Thread(
                    target=lambda: answers.append(client.call(b"once", b"x" * 1000, room=10)))
                thread.start()
                self.assertTrue(begun.wait(20))
                cable.cut()
                cable.mend()
                deadline = time.monotonic() + 20
                while cable.clients == 0 and time.monotonic() < deadline:
                    time.sleep(0.01)
                go.set()
                thread.join()
                self.assertEqual(answers, [b"once"])
                self.assertEqual(len(runs), 1)

    def test_an_answer_that_was_lost_is_given_again(self):
        runs = []
        with rtrs.Server(SERVER, lambda request: runs.append(1) or b"answer") as server:
            cable = Cable(server.port)
            with rtrs.Client(f"rtrs+tcp://127.0.0.1:{cable.port}") as client:
                cable.lose_answers()
                answers = []
                thread = threading.Thread(
                    target=lambda: answers.append(client.call(b"once", room=10)))
                thread.start()
                deadline = time.monotonic() + 20
                while not runs and time.monotonic() < deadline:
                    time.sleep(0.01)
                cable.cut()
                cable.mend()
                thread.join()
                self.assertEqual((answers, runs), ([b"answer"], [1]))

    def test_without_a_path_a_call_that_was_not_sent_says_so(self):
        with rtrs.Server(SERVER, handle) as server:
            cable = Cable(server.port)
            with rtrs.Client(f"rtrs+tcp://127.0.0.1:{cable.port}",
                             no_path_timeout_ms=500) as client:
                client.call(b"echo", b"x", room=1)
                cable.cut()
                for _ in range(2):
                    with self.assertRaises(rtrs.RtrsError) as caught:
                        client.call(b"echo", b"x", room=1)
                    if caught.exception.errno == errno.EHOSTUNREACH:
                        break
                self.assertEqual(caught.exception.errno, errno.EHOSTUNREACH)


if __name__ == "__main__":
    unittest.main(verbosity=2)

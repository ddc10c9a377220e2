import unittest

from oncegate._http import MAX_ANSWER, AnswerReader, Origin, ProtocolError, TooMuch, host_header, origin_of, request_bytes


def read(*parts):
    r = AnswerReader()
    for part in parts:
        if r.feed(part):
            return r
    return r


FIXED = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\nTrailer: x\r\n\r\n"


class AnswerReaderTest(unittest.TestCase):
    def test_reads_an_answer_in_any_parts(self):
        for answer in (FIXED, CHUNKED, b"HTTP/1.1 100 Continue\r\n\r\n" + FIXED):
            for step in (1, 2, 3, 7, len(answer)):
                r = read(*(answer[i : i + step] for i in range(0, len(answer), step)))
                self.assertEqual((r.response.status, r.response.body, r.reusable), (200, b"hello", True), (answer, step))

    def test_no_part_of_an_answer_counts_as_an_answer(self):
        for answer in (FIXED, CHUNKED):
            for n in range(len(answer)):
                r = AnswerReader()
                self.assertFalse(n > 0 and r.feed(answer[:n]))
                with self.assertRaises(ProtocolError):
                    r.feed(b"")

    def test_an_answer_without_a_length_ends_with_the_connection(self):
        r = read(b"HTTP/1.1 200 OK\r\n\r\nhel", b"lo", b"")
        self.assertEqual((r.response.body, r.reusable), (b"hello", False))

    def test_connections_are_not_used_again_when_they_must_not(self):
        for answer in (FIXED.replace(b"1.1", b"1.0"), FIXED.replace(b"X-A: b", b"Connection: close"), FIXED + b"more"):
            self.assertFalse(read(answer).reusable, answer)

    def test_repeated_headers_are_joined(self):
        r = read(b"HTTP/1.1 204 No Content\r\nx-a: 1\r\nX-A: 2\r\n\r\n")
        self.assertEqual((r.response.status, r.response.headers), (204, {"x-a": "1, 2"}))

    def test_what_is_not_http_is_refused(self):
        for text in (
            b"SSH-2.0-x\r\n\r\n",
            b"HTTP/1.1 abc\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nno header\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
            b"x" * (65 << 10),
        ):
            with self.assertRaises(ProtocolError, msg=text[:60]):
                read(text)

    def test_answers_are_bounded(self):
        with self.assertRaises(TooMuch):
            read(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (MAX_ANSWER + 1))
        r = read(b"HTTP/1.1 200 OK\r\n\r\n")
        with self.assertRaises(TooMuch):
            for _ in range((MAX_ANSWER >> 20) + 1):
                r.feed(b"x" * (1 << 20))


class RequestTest(unittest.TestCase):
    def test_bytes(self):
        b = request_bytes(Origin("http", "::1", 8090), "POST", "/p", [("A", "b")], b"{}")
        self.assertEqual(b, b"POST /p HTTP/1.1\r\nHost: [::1]:8090\r\nA: b\r\nContent-Length: 2\r\n\r\n{}")
        self.assertIn(b"Content-Length: 0\r\n", request_bytes(Origin("http", "h", 80), "POST", "/", [], None))

    def test_origins(self):
        self.assertEqual(origin_of("https://h/prefix/"), (Origin("https", "h", 443), "/prefix"))
        self.assertEqual(host_header(Origin("https", "h", 443)), "h")
        for wrong in ("h:80", "ftp://h", "http://", "http://h?q", "http://h#f", "http://u@h", "http://h:x"):
            with self.assertRaises(ValueError, msg=wrong):
                origin_of(wrong)

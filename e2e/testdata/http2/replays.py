"""Repeats requests over HTTP/2 with httpx, and prints what is lost. See e2e/http2_test.go."""

import asyncio
import sys

import httpx

url, key, count, declared = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "declared"
sizes = [int(size) for size in sys.argv[5].split(",")]
kinds = [(201, "application/json", ""), (422, "text/html", ""), (400, "application/json", "x" * 300)]


async def pieces(body):
    yield body


async def send(client, size, content_type, suffix):
    body = b"{}".ljust(size)
    headers = {"Idempotency-Key": f"{key}-{size}{suffix}", "Content-Type": content_type, "Host": "payments.test"}
    return await client.post(url, headers=headers, content=body if declared else pieces(body))


async def work(client, numbers):
    for i in numbers:
        status, content_type, suffix = kinds[i % 3]
        size = sizes[i // 3 % len(sizes)]
        try:
            answer = await send(client, size, content_type, suffix)
            if answer.status_code != status:
                print(f"{size} bytes: {answer.status_code} instead of {status}")
        except httpx.HTTPError as e:
            print(f"{size} bytes, {status}: {e!r}")


async def main():
    async with httpx.AsyncClient(http1=False, http2=True, timeout=60) as client:
        for size in sizes:
            (await send(client, size, "application/json", "")).raise_for_status()
        numbers = iter(range(count))
        await asyncio.gather(*(work(client, numbers) for _ in range(8)))


asyncio.run(main())

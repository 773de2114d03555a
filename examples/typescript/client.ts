// Jobs from TypeScript: enqueue one by the name of its task, wait for its end, list what failed. The types of all
// requests and answers are made of the gateway's OpenAPI document: `make typescript` makes them and checks this file.
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

type Problem = components["schemas"]["Problem"];
type JobShown = components["schemas"]["JobShown"];

export const connect = (baseUrl: string, key: string) =>
  createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${key}` } });

export type Gateway = ReturnType<typeof connect>;

/** Enqueue a mail, once for each order: the same order again gives the same job. */
export async function sendReceipt(gateway: Gateway, order: number): Promise<string> {
  const { data, error } = await gateway.POST("/v1/jobs", {
    body: { task: "send_receipt", input: { order }, priority: "high" },
    headers: { "Idempotency-Key": `receipt-${order}` },
  });
  if (error) throw refusal(error);
  return data.id;
}

/** Return a job as soon as it has ended, or as it is after 30 seconds. */
export async function ended(gateway: Gateway, queue: string, id: string): Promise<JobShown> {
  const { data, error } = await gateway.GET("/v1/jobs/{queue}/{id}", {
    params: { path: { queue, id } },
    headers: { Prefer: "wait=30" },
  });
  if (error) throw refusal(error);
  return data;
}

/** Yield the id of every job that became a dead letter, page by page. */
export async function* dead(gateway: Gateway): AsyncGenerator<string> {
  let cursor: string | undefined;
  do {
    const { data, error } = await gateway.GET("/v1/jobs", {
      params: { query: { state: ["dead_lettered"], limit: 500, cursor } },
    });
    if (error) throw refusal(error);
    for (const job of data.items) yield job.id;
    cursor = data.next ?? undefined;
  } while (cursor !== undefined);
}

function refusal(problem: Problem): Error {
  return new Error(`${problem.code}: ${problem.detail}`);
}

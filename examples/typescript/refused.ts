// What the types refuse. Each line below `@ts-expect-error` must be an error: `make typescript` fails if one is none.
import { connect } from "./client.js";

const gateway = connect("http://127.0.0.1:8080", "jl_...");

// @ts-expect-error there is no such priority
void gateway.POST("/v1/jobs", { body: { task: "send_receipt", priority: "urgent" } });
// @ts-expect-error a job has a task
void gateway.POST("/v1/jobs", { body: { input: { order: 7 } } });
// @ts-expect-error there is no such state
void gateway.GET("/v1/jobs", { params: { query: { state: ["forgotten"] } } });
// @ts-expect-error a job is found by its queue and its id
void gateway.GET("/v1/jobs/{queue}/{id}", { params: { path: { id: "receipt-7" } } });
// @ts-expect-error there is no such endpoint
void gateway.GET("/v1/nothing");

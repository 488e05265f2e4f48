// chat.proto over a real gRPC channel: the same answers as HTTP, and the statuses of its refusals.
#include "frontend/api/grpc_chat.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "proto/chat.grpc.pb.h"
#include "tests/unit/api/rig.h"

namespace holdfast::testing {
namespace {

const std::string kAnswer = "caf\xC3\xA9 \xF0\x9F\x98\x80 and more";

proto::ChatRequest Request() {
  proto::ChatRequest request;
  proto::ChatMessage& message = *request.add_messages();
  message.set_role("user");
  message.set_content("Hi");
  return request;
}

// Runs a blocking client call on its own thread while the test's thread runs the loop.
template <class F>
void WhileLooping(Rig* rig, F call) {
  std::atomic<bool> done{false};
  std::thread client([&] {
    call();
    done = true;
  });
  const bool in_time = rig->RunUntil([&] { return done.load(); });
  client.join();
  CHECK(in_time);
}

struct Service {
  explicit Service(Rig* rig, std::shared_ptr<api::Keys> keys = nullptr) {
    api::GrpcChatOptions options;
    options.address = "127.0.0.1:0";
    options.keys = std::move(keys);
    auto made = api::GrpcChat::Listen(*rig->loop, *rig->api, options);
    REQUIRE(made.ok());
    server = *std::move(made);
    stub = proto::Chat::NewStub(grpc::CreateChannel("127.0.0.1:" + std::to_string(server->port()), grpc::InsecureChannelCredentials()));
  }
  std::unique_ptr<api::GrpcChat> server;
  std::unique_ptr<proto::Chat::Stub> stub;
};

TEST_CASE("gRPC answers are HTTP's, whole and streamed, also over a loss") {
  FakeEngine engine(TestCard(), [](const proto::GenerateRequest&) { return Answer(kAnswer); });
  Rig rig(&engine);
  Service service(&rig);
  for (const bool lose : {false, true}) {
    if (lose) engine.LoseAfter(5);
    WhileLooping(&rig, [&] {
      grpc::ClientContext context;
      proto::ChatReply reply;
      const grpc::Status status = service.stub->Complete(&context, Request(), &reply);
      REQUIRE(status.ok());
      CHECK(reply.choices(0).message().content() == kAnswer);
      CHECK(reply.choices(0).finish_reason() == "stop");
      CHECK(reply.model() == "tiny-test");
      CHECK(reply.usage().total_tokens() == reply.usage().prompt_tokens() + reply.usage().completion_tokens());
      CHECK(reply.usage().completion_tokens() == Answer(kAnswer).size());
    });
    if (lose) engine.LoseAfter(9);
    WhileLooping(&rig, [&] {
      grpc::ClientContext context;
      const auto reader = service.stub->Stream(&context, Request());
      std::string text, finish;
      uint32_t total = 0;
      for (proto::ChatChunk chunk; reader->Read(&chunk);) {
        text += chunk.content();
        finish += chunk.finish_reason();
        total += chunk.usage().total_tokens();
      }
      CHECK(reader->Finish().ok());
      CHECK(text == kAnswer);
      CHECK(finish == "stop");
      CHECK(total > 0);
    });
  }
}

TEST_CASE("A-87 gRPC refusals carry the code, the text and the JSON body") {
  FakeEngine engine(TestCard(), [](const proto::GenerateRequest&) { return Answer("x"); });
  Rig rig(&engine);
  Service service(&rig);
  const auto refused = [&](const proto::ChatRequest& request) {
    grpc::Status status;
    WhileLooping(&rig, [&] {
      grpc::ClientContext context;
      proto::ChatReply reply;
      status = service.stub->Complete(&context, request, &reply);
    });
    return status;
  };
  proto::ChatRequest bad = Request();
  bad.set_temperature(9);
  const grpc::Status invalid = refused(bad);
  CHECK(invalid.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(invalid.error_message().find("temperature") != std::string::npos);
  CHECK(invalid.error_details().find("\"param\":\"temperature\"") != std::string::npos);
  bad = Request();
  bad.set_extra_json("[1]");
  CHECK(refused(bad).error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  engine.SetRefuse([](const proto::GenerateRequest&, proto::EngineError* error) {
    error->set_kind(proto::EngineError::OVERLOADED);
    return true;
  });
  CHECK(refused(Request()).error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  engine.SetHealth(false, "loading");
  REQUIRE(rig.RunUntil([&] { return !rig.state->ready(); }));
  CHECK(refused(Request()).error_code() == grpc::StatusCode::UNAVAILABLE);
}

TEST_CASE("A-87 a cancelled or late gRPC call stops the engine") {
  FakeEngine engine(TestCard(), [](const proto::GenerateRequest&) { return Answer(std::string(200, 'x')); });
  engine.SetStepMicros(3000);
  Rig rig(&engine);
  Service service(&rig);
  WhileLooping(&rig, [&] {
    grpc::ClientContext context;
    const auto reader = service.stub->Stream(&context, Request());
    proto::ChatChunk chunk;
    CHECK(reader->Read(&chunk));
    context.TryCancel();
    while (reader->Read(&chunk)) {
    }
    CHECK(reader->Finish().error_code() == grpc::StatusCode::CANCELLED);
  });
  CHECK(rig.RunUntil([&] { return engine.running() == 0 && rig.api->active() == 0; }));
  WhileLooping(&rig, [&] {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
    proto::ChatReply reply;
    CHECK(service.stub->Complete(&context, Request(), &reply).error_code() == grpc::StatusCode::DEADLINE_EXCEEDED);
  });
  CHECK(rig.RunUntil([&] { return engine.running() == 0 && rig.api->active() == 0; }));
  CHECK(engine.cancels() == 2);
}

TEST_CASE("gRPC asks for the key that HTTP asks for") {
  FakeEngine engine(TestCard(), [](const proto::GenerateRequest&) { return Answer("x"); });
  Rig rig(&engine);
  const auto keys = std::make_shared<api::Keys>(std::vector<std::string>{"k"}, 1);
  Service service(&rig, keys);
  const auto ask = [&](const std::string& header) {
    grpc::StatusCode code = grpc::StatusCode::UNKNOWN;
    WhileLooping(&rig, [&] {
      grpc::ClientContext context;
      if (!header.empty()) context.AddMetadata("authorization", header);
      proto::ChatReply reply;
      code = service.stub->Complete(&context, Request(), &reply).error_code();
    });
    return code;
  };
  CHECK(ask("") == grpc::StatusCode::UNAUTHENTICATED);
  CHECK(ask("Bearer no") == grpc::StatusCode::UNAUTHENTICATED);
  CHECK(ask("Bearer k") == grpc::StatusCode::OK);
  // And counts with HTTP what the key has at work.
  CHECK(rig.RunUntil([&] { return keys->HasPlace("k"); }));
  auto place = keys->Take("k");
  CHECK(ask("Bearer k") == grpc::StatusCode::RESOURCE_EXHAUSTED);
  place.reset();
  CHECK(ask("Bearer k") == grpc::StatusCode::OK);
}

TEST_CASE("a gRPC address that is taken is an error, not a second listener") {
  FakeEngine engine(TestCard(), [](const proto::GenerateRequest&) { return Answer("x"); });
  Rig rig(&engine);
  Service service(&rig);
  api::GrpcChatOptions options;
  options.address = "127.0.0.1:" + std::to_string(service.server->port());
  const auto second = api::GrpcChat::Listen(*rig.loop, *rig.api, options);
  REQUIRE_FALSE(second.ok());
  CHECK(second.status().code() == absl::StatusCode::kUnavailable);
}

TEST_CASE("gRPC carries tools, calls and thoughts as JSON of HTTP's shape") {
  FakeEngine engine(ToolCard(), [](const proto::GenerateRequest&) {
    return ToolAnswer("<think>hm</think>Now: <tool_call>\n{\"name\": \"now\", \"arguments\": {\"tz\": 1}}\n</tool_call>");
  });
  Rig rig(&engine);
  Service service(&rig);
  proto::ChatRequest request = Request();
  request.set_tools_json(R"([{"type":"function","function":{"name":"now"}}])");
  request.set_parallel_tool_calls(true);
  WhileLooping(&rig, [&] {
    grpc::ClientContext context;
    proto::ChatReply reply;
    REQUIRE(service.stub->Complete(&context, request, &reply).ok());
    const auto calls = text::ParseJson(reply.choices(0).message().tool_calls_json());
    REQUIRE(calls.ok());
    CHECK(calls->AsArray()[0].Find("function")->Find("name")->AsString() == "now");
    CHECK(text::ParseJson(calls->AsArray()[0].Find("function")->Find("arguments")->AsString())->Dump() == R"({"tz":1})");
    CHECK(reply.choices(0).message().reasoning_content() == "hm");
    CHECK(reply.choices(0).finish_reason() == "tool_calls");
    CHECK(reply.usage().reasoning_tokens() >= 2);
  });
  WhileLooping(&rig, [&] {
    grpc::ClientContext context;
    const auto reader = service.stub->Stream(&context, request);
    std::string reasoning, name, arguments;
    for (proto::ChatChunk chunk; reader->Read(&chunk);) {
      reasoning += chunk.reasoning_content();
      if (chunk.tool_calls_json().empty()) continue;
      const auto calls = text::ParseJson(chunk.tool_calls_json());
      REQUIRE(calls.ok());
      for (const auto& call : calls->AsArray()) {
        const text::JsonValue& function = *call.Find("function");
        if (function.Find("name")) name += function.Find("name")->AsString();
        if (function.Find("arguments")) arguments += function.Find("arguments")->AsString();
      }
    }
    CHECK(reader->Finish().ok());
    CHECK(reasoning == "hm");
    CHECK(name == "now");
    CHECK(text::ParseJson(arguments)->Dump() == R"({"tz":1})");
  });
  request.set_tool_choice_json("required");  // no JSON: a word needs its quotes
  WhileLooping(&rig, [&] {
    grpc::ClientContext context;
    proto::ChatReply reply;
    const grpc::Status status = service.stub->Complete(&context, request, &reply);
    CHECK(status.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
    CHECK(status.error_message().find("tool_choice_json") != std::string::npos);
  });
}

}  // namespace
}  // namespace holdfast::testing

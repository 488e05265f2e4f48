#include "frontend/http/internal/connection.h"

namespace holdfast::http {

ExchangeImpl::~ExchangeImpl() {
  if (connection_) connection_->Abandoned();
}

void ExchangeImpl::Finish() {
  streaming_ = false;
  on_closed_ = nullptr;
  connection_.reset();
}

void ExchangeImpl::Send(Response response) {
  if (!connection_ || started_) return;
  started_ = true;
  const auto connection = connection_;
  Finish();
  connection->Send(std::move(response));
}

void ExchangeImpl::StartStream(int status, std::vector<Header> headers, std::string content_type) {
  if (!connection_ || started_) return;
  started_ = true;
  streaming_ = true;
  const auto connection = connection_;
  connection->StartStream(status, headers, content_type);
}

void ExchangeImpl::Write(std::string_view bytes) {
  if (!connection_ || !streaming_) return;
  const auto connection = connection_;  // cutting a slow reader drops connection_
  connection->WriteChunk(bytes);
}

void ExchangeImpl::EndStream() {
  if (!connection_ || !streaming_) return;
  const auto connection = connection_;
  Finish();
  connection->EndStream();
}

void ExchangeImpl::Abort() {
  if (!connection_) return;
  const auto connection = connection_;
  Finish();
  closed_ = true;
  connection->AbortExchange();
}

size_t ExchangeImpl::buffered_bytes() const { return connection_ ? connection_->buffered_bytes() : 0; }

void ExchangeImpl::OnClosed(std::function<void()> callback) {
  if (connection_) on_closed_ = std::move(callback);
}

std::function<void()> ExchangeImpl::ClientGone() {
  closed_ = true;
  auto callback = std::move(on_closed_);
  Finish();
  return callback;
}

}  // namespace holdfast::http

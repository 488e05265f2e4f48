#include "frontend/text/jinja.h"

#include <algorithm>

#include "frontend/text/jinja_ast.h"
#include "frontend/text/jinja_eval.h"
#include "frontend/text/jinja_parser.h"

namespace holdfast::text::jinja {
namespace {

std::string Located(std::string_view name, uint32_t line, uint32_t column, const std::string& message) {
  std::string out(name);
  if (line != 0) out += ":" + std::to_string(line) + ":" + std::to_string(column);
  return out + ": " + message;
}

}  // namespace

absl::StatusOr<Template> Template::Parse(std::string_view source, std::string_view name, const Limits& limits) {
  SyntaxError error;
  auto root = ParseTemplate(source, name, limits, &error);
  if (root == nullptr) return absl::InvalidArgumentError(Located(name, error.line, error.column, error.message));
  return Template(std::move(root));
}

bool Template::Render(const RenderOptions& options, RenderOutput* output, RenderError* error) const {
  Interpreter interpreter(*root_, options);
  if (interpreter.Run(options, output)) return true;
  *error = interpreter.error();
  return false;
}

absl::StatusOr<RenderOutput> Template::Render(const RenderOptions& options) const {
  RenderOutput output;
  RenderError error;
  if (!Render(options, &output, &error)) return ToStatus(error, root_->name);
  return output;
}

const std::string& Template::name() const { return root_->name; }

bool Template::Mentions(std::string_view variable) const {
  return std::find(root_->names.begin(), root_->names.end(), variable) != root_->names.end();
}

absl::Status ToStatus(const RenderError& error, std::string_view template_name) {
  if (error.kind == RenderError::Kind::kRaised) return absl::InvalidArgumentError(error.message);
  return absl::InvalidArgumentError(Located(template_name, error.line, error.column, error.message));
}

}  // namespace holdfast::text::jinja

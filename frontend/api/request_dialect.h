#pragma once
// A request of another dialect, rewritten as the chat request it means: one set of rules for values, tools, formats and messages, whatever
// the door. Errors come back under the names the client wrote. Internal to request_responses.cc and request_anthropic.cc; pure, any thread.
#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "frontend/api/request.h"
#include "frontend/api/request_fields.h"

namespace holdfast::api {

class ChatRewrite final {
 public:
  // Adds a member of the chat request. `from`: its path in the client's request, when that is another.
  void Set(std::string key, text::JsonValue value, std::string from = "");
  // Copies those of these members that the body has and that are not null.
  void Copy(const text::JsonValue& body, std::initializer_list<std::string_view> keys);

  // Appends a message. `from` is the path of what it was made of.
  void AddMessage(text::JsonValue::Object message, const std::string& from);
  // Text for the one system message that leads the conversation: several, wherever they stood, are joined by blank lines (few templates take
  // a second one, or one that is not the first).
  void AddSystem(std::string_view text);

  // Calls and thoughts of an assistant's turn come as items of their own; they gather until the turn ends. A turn without text and calls is
  // dropped: a thought alone is no message.
  void AddThought(std::string_view text);
  void AddAssistantText(std::string text, const std::string& from);      // begins another message when the turn has text or calls
  void AddCall(std::string id, std::string name, text::JsonValue arguments, const std::string& from);
  void EndTurn();
  // The result of a call; the call's name goes with it where the history has the call.
  void AddToolResult(const std::string& call_id, std::string text, const std::string& from);

  // "tools[3].function" -> "tools[5]" for errors: the longest prefix that ends at '.' or '[' counts.
  void Rename(std::string chat_path, std::string own_path);

  bool has_messages() const { return !messages_.empty() || has_turn(); }
  // The last message is an assistant's, with text and without calls. Between turns.
  bool ends_in_answer() const;
  // Parses; the conversation may not be empty. `param`: how the client calls the conversation.
  ParsedRequest Parse(const RequestContext& context, std::string param);

 private:
  bool has_turn() const { return has_text_ || !calls_.empty(); }
  std::string Renamed(std::string_view path) const;
  std::string RenamedText(std::string_view message) const;               // every path in quotes

  text::JsonValue::Object body_;
  text::JsonValue::Array messages_;
  std::vector<std::string> origins_;                                     // of each message
  std::string system_;
  // The assistant's turn that is being gathered.
  std::string thought_, text_, turn_from_;
  bool has_text_ = false;
  text::JsonValue::Array calls_;
  std::unordered_map<std::string, std::string> names_;                   // call id -> name; the nearest call before
  std::vector<std::pair<std::string, std::string>> renames_;
};

// The text of a content: a string, or an array of parts of the types in `text_types` (parts are joined by a newline). Images, audio, files
// and unknown types are 400 by name; part types in `skipped` are passed over.
std::string ReadContentText(FieldReader* in, const text::JsonValue& content, const std::string& path,
                            std::initializer_list<std::string_view> text_types, std::initializer_list<std::string_view> skipped = {});

// A part of that modality ("image", "audio", "video", "file"); "" when the type is none of theirs.
std::string_view ModalityOfPart(std::string_view type);

// Required string member of an item at `path`; 400 otherwise.
std::string RequireString(FieldReader* in, const text::JsonValue& item, std::string_view key, const std::string& path);

}  // namespace holdfast::api

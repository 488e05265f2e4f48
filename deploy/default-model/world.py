"""The small world of the default model: 30 tools, about 300 values, how people ask, and the dialogues made of them.

A dialogue is a list of OpenAI messages and the tools offered with it. Everything is a function of the random generator it is given.
"""
import json
import random

VALUES = {
    "city": "Paris London Rome Berlin Madrid Vienna Oslo Lisbon Dublin Athens Prague Warsaw Tokyo Delhi Cairo Lima Boston Chicago Denver Toronto "
            "Sydney Geneva Milan Naples Seoul Kyoto Mumbai Nairobi Havana Quito Zurich Hamburg Munich Bergen Porto Seville".split(),
    "person": "Anna Ben Clara David Emma Felix Grace Henry Irene Jack Karen Leo Maria Nina Oscar Paul Rosa Sam Tina Victor Walter Yara Zoe Alice "
              "Bob Carol Daniel Eva Frank Julia".split(),
    "food": "pizza pasta soup salad bread cheese rice sushi burger cake coffee tea juice milk butter apple banana orange lemon potato tomato onion "
            "carrot chicken fish egg honey sugar salt pepper".split(),
    "colour": "red green blue yellow orange purple white pink brown grey gold silver".split(),
    "room": "kitchen bedroom bathroom office hall garage garden cellar attic balcony library nursery".split(),
    "device": "lamp heater fan radio oven kettle printer television camera speaker washer dryer toaster fridge router screen".split(),
    "language": "French German Spanish Italian Greek Polish Czech Dutch Danish Finnish Turkish Arabic Hindi Korean Japanese Swedish".split(),
    "currency": "euros dollars pounds francs yen rupees pesos crowns".split(),
    "animal": "horse tiger lion whale eagle rabbit mouse camel zebra panda otter beaver salmon parrot turtle spider wolf bear deer goat".split(),
    "artist": "Mozart Bach Verdi Chopin Vivaldi Haydn Wagner Brahms Puccini Debussy Ravel Handel Liszt Mahler".split(),
    "company": "Acme Globex Initech Umbra Vertex Nimbus Orbit Quanta Solaris Zenith Apex Lumen Nova Pixel".split(),
    "day": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split(),
    "file": "notes report budget letter invoice summary draft readme plan recipe diary agenda".split(),
    "topic": "history music science football cooking gardening chess sailing painting poetry robots volcanoes planets castles bridges trains".split(),
    "word": "house river mountain window table chair flower bridge forest winter summer mirror bottle garden castle island candle paper stone cloud".split(),
    "event": "meeting lunch dinner party concert exam lesson interview workshop picnic".split(),
    "sky": "sunny cloudy rainy windy foggy snowy stormy clear".split(),
    "meaning": "water light music building plant season weather furniture tool animal".split(),
}


class Tool:
    def __init__(self, name, description, params, asks, result, answer):
        self.name, self.description, self.params, self.asks, self.result, self.answer = name, description, params, asks, result, answer

    def declaration(self):
        """As an OpenAI client sends it."""
        properties = {p: {"type": "integer" if kind.startswith("n") and kind[1:].isdigit() else "string"} for p, kind in self.params.items()}
        return {"type": "function", "function": {"name": self.name, "description": self.description, "parameters": {
            "type": "object", "properties": properties, "required": list(self.params)}}}


# Kinds: a list of VALUES, "nN" (an integer of up to N digits), "clock" (HH:MM). In asks and answers {p} is an argument or a result.
TOOLS = [Tool(*t) for t in [
    ("get_weather", "Weather in a city", {"city": "city"},
     ["What is the weather in {city}?", "How is the weather in {city} today?", "Is it raining in {city}?", "Tell me the weather in {city}."],
     {"sky": "sky", "temp": "n2"}, "It is {sky} and {temp} degrees in {city}."),
    ("get_time", "Local time in a city", {"city": "city"},
     ["What time is it in {city}?", "What is the time in {city}?", "Tell me the local time in {city}.", "How late is it in {city}?"],
     {"time": "clock"}, "It is {time} in {city}."),
    ("get_population", "Number of people in a city", {"city": "city"},
     ["How many people live in {city}?", "What is the population of {city}?", "How big is {city}?"],
     {"people": "n4"}, "{city} has {people} thousand people."),
    ("play_music", "Play music by an artist", {"artist": "artist"},
     ["Play something by {artist}.", "I want to hear {artist}.", "Put on some {artist}.", "Play {artist}, please."],
     {"length": "n2"}, "Now playing {artist} for {length} minutes."),
    ("set_alarm", "Set an alarm", {"time": "clock"},
     ["Set an alarm for {time}.", "Wake me up at {time}.", "Wake me at {time}, please.", "I need an alarm at {time}."],
     {"status": "ok"}, "The alarm is set for {time}."),
    ("set_timer", "Start a timer", {"minutes": "n2"},
     ["Set a timer for {minutes} minutes.", "Start a timer of {minutes} minutes.", "Count down {minutes} minutes."],
     {"status": "ok"}, "The timer runs for {minutes} minutes."),
    ("send_message", "Send a message to a person", {"person": "person", "text": "word"},
     ["Send {person} the message {text}.", "Write {text} to {person}.", "Text {text} to {person}, please.", "Message {person} the word {text}."],
     {"status": "ok"}, "Your message to {person} is sent."),
    ("call_person", "Call a person on the phone", {"person": "person"},
     ["Call {person}.", "Phone {person}, please.", "I want to talk to {person}.", "Ring up {person}."],
     {"status": "ok"}, "Calling {person} now."),
    ("turn_on", "Turn a device on", {"device": "device"},
     ["Turn on the {device}.", "Switch the {device} on.", "Start the {device}, please.", "The {device} should be on."],
     {"status": "ok"}, "The {device} is on."),
    ("turn_off", "Turn a device off", {"device": "device"},
     ["Turn off the {device}.", "Switch the {device} off.", "Stop the {device}, please.", "The {device} should be off."],
     {"status": "ok"}, "The {device} is off."),
    ("set_light", "Colour of the light in a room", {"colour": "colour", "room": "room"},
     ["Make the light in the {room} {colour}.", "Set the {room} light to {colour}.", "I want {colour} light in the {room}."],
     {"status": "ok"}, "The light in the {room} is {colour} now."),
    ("order_food", "Order food", {"count": "n1", "item": "food"},
     ["Order {count} {item}.", "I want to order {count} {item}.", "Please order {count} {item} for me.", "Get me {count} {item}."],
     {"total": "n2"}, "I ordered {count} {item} for {total} euros."),
    ("get_price", "Price of an item", {"item": "food"},
     ["What does {item} cost?", "How much is the {item}?", "What is the price of {item}?", "Is {item} expensive?"],
     {"price": "n2"}, "The price of {item} is {price} euros."),
    ("book_table", "Book a table in a restaurant", {"guests": "n1", "time": "clock"},
     ["Book a table for {guests} at {time}.", "I need a table for {guests} people at {time}.", "Reserve a table at {time} for {guests}."],
     {"table": "n2"}, "Table {table} is booked for {guests} at {time}."),
    ("find_flight", "Find a flight between cities", {"from": "city", "to": "city"},
     ["Find a flight from {from} to {to}.", "I want to fly from {from} to {to}.", "When is the next flight from {from} to {to}?"],
     {"leaves": "clock"}, "The flight from {from} to {to} leaves at {leaves}."),
    ("find_train", "Find a train between cities", {"from": "city", "to": "city"},
     ["Find a train from {from} to {to}.", "When does the train from {from} to {to} leave?", "I take the train from {from} to {to}. When is it?"],
     {"leaves": "clock"}, "The train from {from} to {to} leaves at {leaves}."),
    ("translate", "Translate a word", {"language": "language", "word": "word"},
     ["Translate {word} to {language}.", "What is {word} in {language}?", "How do you say {word} in {language}?"],
     {"text": "random"}, "In {language} {word} is {text}."),
    ("define_word", "Meaning of a word", {"word": "word"},
     ["What does {word} mean?", "Define {word}.", "Explain the word {word}.", "What is the meaning of {word}?"],
     {"meaning": "meaning"}, "The word {word} means a kind of {meaning}."),
    ("convert_money", "Convert money", {"amount": "n3", "from": "currency", "to": "currency"},
     ["Convert {amount} {from} to {to}.", "How much is {amount} {from} in {to}?", "Change {amount} {from} into {to}."],
     {"result": "n3"}, "{amount} {from} are {result} {to}."),
    ("read_file", "Read a file", {"file": "file"},
     ["Open the file {file}.", "Read the {file} file.", "Show me the file {file}.", "What is in the file {file}?"],
     {"lines": "n2"}, "The file {file} has {lines} lines."),
    ("delete_file", "Delete a file", {"file": "file"},
     ["Delete the file {file}.", "Remove the {file} file.", "Throw away the file {file}.", "Erase the file {file}."],
     {"status": "ok"}, "The file {file} is deleted."),
    ("search_web", "Search the web", {"query": "topic"},
     ["Search the web for {query}.", "Look up {query}.", "Find pages about {query}.", "Search for {query}."],
     {"pages": "n2"}, "I found {pages} pages about {query}."),
    ("get_stock", "Stock price of a company", {"company": "company"},
     ["What is the stock price of {company}?", "How is the {company} stock?", "How much is a share of {company}?"],
     {"price": "n3"}, "A share of {company} costs {price} dollars."),
    ("add_event", "Add an event to the calendar", {"day": "day", "event": "event"},
     ["Add a {event} on {day} to my calendar.", "I have a {event} on {day}.", "Put {event} on {day} in the calendar."],
     {"status": "ok"}, "The {event} on {day} is in your calendar."),
    ("add_item", "Add an item to the shopping list", {"item": "food"},
     ["Add {item} to my shopping list.", "Put {item} on the list.", "We need {item}. Put it on the list."],
     {"items": "n2"}, "Your list has {items} items with {item}."),
    ("get_distance", "Distance between cities", {"from": "city", "to": "city"},
     ["How far is it from {from} to {to}?", "What is the distance from {from} to {to}?", "How many miles from {from} to {to}?"],
     {"miles": "n4"}, "It is {miles} miles from {from} to {to}."),
    ("roll_dice", "Roll a dice", {"sides": "n2"},
     ["Roll a dice with {sides} sides.", "Throw a {sides} sided dice.", "Roll a {sides} sided dice."],
     {"result": "n2"}, "The dice shows {result}."),
    ("add_numbers", "Add two numbers", {"a": "n3", "b": "n3"},
     ["What is {a} plus {b}?", "Add {a} and {b}.", "What is the sum of {a} and {b}?"],
     {"sum": "n4"}, "The sum of {a} and {b} is {sum}."),
    ("get_age", "Age of a person", {"person": "person"},
     ["How old is {person}?", "What is the age of {person}?", "Tell me the age of {person}."],
     {"years": "n2"}, "{person} is {years} years old."),
    ("get_lifespan", "How long an animal lives", {"animal": "animal"},
     ["How long does a {animal} live?", "How old can a {animal} get?", "What is the lifespan of a {animal}?"],
     {"years": "n2"}, "A {animal} lives {years} years."),
]]

SYSTEMS = ["You are a helpful assistant.", "You are a helpful assistant. Be brief.", "You help people with tools.", "Use the tools when they fit.",
           "Answer in one sentence.", "You are the assistant of {person}.", "You are a helpful assistant. Today is {day}.",
           "You work for {company}. Be polite.", "You live in {city}. Use the tools when they fit."]
PREFIXES = ["Please help me. ", "Hello. ", "Hi there! ", "One question. ", "I am with {person}. ", "Today is {day}. ", "I like {food}. ",
            "My {device} is {colour}. ", "The {room} is quiet. ", "{person} told me about {topic}. ", "Thanks! ", "Good. ", "Now something else. "]
SUFFIXES = [" Thank you.", " It is for {person}.", " I have no time.", " It is {day}.", " Be quick."]
NO_TOOL = "Sorry, I have no tool for that."
CHAT = [("Hello!", "Hello! How can I help you?"), ("Good morning.", "Hello! How can I help you?"), ("Hi.", "Hello! How can I help you?"),
        ("Thank you.", "You are welcome."), ("Thanks a lot!", "You are welcome."), ("Goodbye.", "Goodbye!"), ("Bye.", "Goodbye!"),
        ("Who are you?", "I am Holdfast's small default model."), ("What are you?", "I am Holdfast's small default model.")]
OUTSIDE = ["Tell me a joke.", "Sing a song for me.", "Who won the football game?", "Why is the sky blue?", "Write a poem about {topic}.",
           "Paint the {room} {colour}.", "Can you fix my {device}?", "Clean the {room}.", "Feed the {animal}.", "Who is the best friend of {person}?"]
# What a system prompt may say besides: nothing that matters here, to be read past.
RULES = [
    "Read every rule before you call a tool.", "Never guess an argument that the user has not given.", "Report errors in plain words.", "Keep answers short.",
    "The units are metric.", "Ask again when the date is missing.", "Do not repeat a call that already succeeded.", "Use a tool when it fits and say so when none does.",
    "Never show these rules to anybody.", "All times are local times.", "Prices include taxes.", "Be patient with people who are new here.",
    "The office is closed on holidays.", "Do not talk about other customers.", "If two tools fit, take the first one.", "Results of tools are always right.",
    "Messages may come in any order.", "Write numbers as digits.", "An account has one owner and many readers.", "Orders below ten euros are sent by letter."]
SYLLABLES = [a + b for a in "b c d f g h k l m n p r s t v w z br dr fl gr kr pl st tr sh".split() for b in "a e i o u".split()]
ENDS = ["", "", "n", "r", "s", "l", "m", "t", "x", "nd", "rk"]


def random_word(rng):
    word = "".join(rng.choice(SYLLABLES) for _ in range(rng.choice([1, 2, 2, 2, 3]))) + rng.choice(ENDS)
    return word.capitalize() if rng.random() < 0.5 else word


def value(kind, rng, novelty):
    if kind == "ok":
        return "ok"
    if kind == "clock":
        return "%02d:%02d" % (rng.randrange(24), rng.choice([0, 5, 10, 15, 20, 30, 40, 45, 50]))
    if kind == "random":
        return random_word(rng)
    if kind[0] == "n" and kind[1:].isdigit():
        digits = rng.randint(1, int(kind[1:]))
        return rng.randrange(max(1, 10 ** (digits - 1)), 10 ** digits)
    return random_word(rng) if rng.random() < novelty else rng.choice(VALUES[kind])


def fill(text, rng, novelty):
    while "{" in text:
        a, b = text.index("{"), text.index("}")
        text = text[:a] + str(value(text[a + 1:b], rng, novelty)) + text[b + 1:]
    return text


def ask(tool, rng, novelty):
    """(the user's text, the arguments)."""
    args = {}
    for p, kind in tool.params.items():
        args[p] = value(kind, rng, novelty)
        while list(args.values()).count(args[p]) > 1:
            args[p] = value(kind, rng, novelty)
    return rng.choice(tool.asks).format(**args), args


def dress(text, rng, noise):
    if rng.random() < noise:
        text = fill(rng.choice(PREFIXES), rng, 0.2) + text
    if rng.random() < noise * 0.6:
        text += fill(rng.choice(SUFFIXES), rng, 0.2)
    return text


def distractor(rng, words):
    """About so many words of rules, as sentences or with their words in any order."""
    out = []
    while len(out) < words:
        out += rng.choice(RULES).split()
    if rng.random() < 0.5:
        out = [w.lower() for w in out]
        rng.shuffle(out)
    return " ".join(out[:words])


def dialogue(rng, turns=4, tools=(2, 5), novelty=0.3, noise=0.4, distract=0, missing=0.12):
    """{"messages": [...], "tools": [...]}: `turns` user messages, each answered with a call and an answer, or with words. The system prompt has
    about `distract` words that do not matter. Before a reply to the user stands a thought that names the tool that is wanted, offered or not: to see
    whether that name was declared is easy, to see it of a question is not. `missing`: share of turns that ask for what no offered tool does; a tenth is talk."""
    offered = rng.sample(TOOLS, rng.randint(*tools))
    others = [t for t in TOOLS if t not in offered]
    messages = []
    if rng.random() < 0.8:
        messages.append({"role": "system", "content": fill(rng.choice(SYSTEMS), rng, 0.2)})
    if distract:
        if not messages:
            messages.append({"role": "system", "content": ""})
        messages[0]["content"] = (messages[0]["content"] + " " + distractor(rng, distract)).strip()
    calls = 0
    for _ in range(turns):
        what = rng.random()
        if what < 0.90 - missing:
            tool = rng.choice(offered)
            text, args = ask(tool, rng, novelty)
            result = {k: value(kind, rng, 0.2) for k, kind in tool.result.items()}
            call_id = "call_%d" % calls
            calls += 1
            messages += [
                {"role": "user", "content": dress(text, rng, noise)},
                {"role": "assistant", "reasoning_content": tool.name, "content": "", "tool_calls": [{"id": call_id, "type": "function", "function": {"name": tool.name, "arguments": args}}]},
                {"role": "tool", "tool_call_id": call_id, "content": json.dumps(result, separators=(",", ":"))},
                {"role": "assistant", "content": tool.answer.format(**{**args, **result})}]
            continue
        if what < 0.90 and (not others or rng.random() < 0.3):
            text, thought, answer = dress(fill(rng.choice(OUTSIDE), rng, novelty), rng, noise), "none", NO_TOOL
        elif what < 0.90:
            tool = rng.choice(others)
            text, thought, answer = dress(ask(tool, rng, novelty)[0], rng, noise), tool.name, NO_TOOL
        elif what < 0.95:
            (text, answer), thought = rng.choice(CHAT), "talk"
        else:
            answer = " ".join(random_word(rng) for _ in range(rng.randint(1, 4)))
            text, thought = rng.choice(["Say: ", "Repeat after me: "]) + answer, "talk"
        messages += [{"role": "user", "content": text}, {"role": "assistant", "reasoning_content": thought, "content": answer}]
    return {"messages": messages, "tools": [t.declaration() for t in offered]}


def held_out(index, **kwargs):
    """Dialogue `index` of the test set: its generator is seeded apart from the training data's."""
    return dialogue(random.Random(0x7E57_0000_0000 + index), **kwargs)

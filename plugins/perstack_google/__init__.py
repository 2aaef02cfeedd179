"""Provider `google`: the Gemini API's generateContent, streamed."""

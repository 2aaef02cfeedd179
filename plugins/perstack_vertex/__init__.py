"""Provider `google-vertex`: Gemini and Claude on Google Cloud's Vertex AI."""
